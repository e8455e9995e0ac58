#include "server/request_stream.h"

#include "base/check.h"

namespace fathom {

namespace {

// What waits within this is not claimed: usual steps are to find room on a server that is full.
constexpr size_t kUnclaimedBytes = size_t{64} << 10;

size_t BytesOf(const TokenLogprobs& logprobs) {
  return sizeof logprobs + logprobs.top.size() * sizeof logprobs.top[0];
}

size_t BytesOf(const RequestOutput& output) {
  size_t bytes = sizeof output + output.tokens.size() * sizeof(GeneratedToken);
  for (const GeneratedToken& token : output.tokens) {
    if (token.logprobs) bytes += BytesOf(*token.logprobs);
  }
  for (const TokenLogprobs& logprobs : output.prompt_logprobs) bytes += BytesOf(logprobs);
  return bytes;
}

}  // namespace

Status EngineOutputs::Inbox::Hold(size_t now) {
  if (claim != nullptr && now > kUnclaimedBytes && now > claim->held()) {
    TRY(claim->Grow(now - claim->held()));
  }
  bytes = now;
  return {};
}

void EngineOutputs::Deliver(std::vector<RequestOutput> outputs) {
  for (RequestOutput& output : outputs) {
    Address address;
    {
      std::lock_guard lock(mutex_);
      const auto found = addresses_.find(output.id);
      if (found == addresses_.end()) continue;
      address = found->second;
    }
    Inbox& inbox = *address.inbox;
    std::lock_guard lock(inbox.mutex);
    if (!inbox.wake || !inbox.failure.ok()) continue;
    inbox.failure = inbox.Hold(inbox.bytes + BytesOf(output));
    if (!inbox.failure.ok()) {
      inbox.wake();
      continue;
    }
    inbox.outputs.emplace_back(address.index, std::move(output));
    // One call is enough until all outputs are taken.
    if (inbox.outputs.size() == 1) inbox.wake();
  }
}

RequestStream::RequestStream(EngineOutputs& outputs, EngineClient& engine,
                             std::function<void()> wake, std::unique_ptr<MemoryClaim> claim)
    : outputs_(outputs), engine_(engine), inbox_(std::make_shared<EngineOutputs::Inbox>()) {
  inbox_->wake = std::move(wake);
  inbox_->claim = std::move(claim);
}

RequestStream::~RequestStream() {
  {
    std::lock_guard lock(inbox_->mutex);
    inbox_->wake = nullptr;
    inbox_->outputs.clear();
    inbox_->claim = nullptr;
  }
  for (size_t i = 0; i < sent_.size(); ++i) Cancel(i);
}

Status RequestStream::Submit(std::vector<GenerateRequest> requests) {
  CHECK(sent_.empty(), "a RequestStream submits once");
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestId id{outputs_.next_id_.fetch_add(1)};
    {
      std::lock_guard lock(outputs_.mutex_);
      outputs_.addresses_[id] = {inbox_, i};
    }
    sent_.push_back({id, true});
    requests[i].id = id;
    Status status = engine_.Submit(std::move(requests[i]));
    if (!status.ok()) {
      Forget(i);
      for (size_t before = 0; before < i; ++before) Cancel(before);
      return status;
    }
  }
  return {};
}

void RequestStream::Forget(size_t index) {
  sent_[index].live = false;
  std::lock_guard lock(outputs_.mutex_);
  outputs_.addresses_.erase(sent_[index].id);
}

void RequestStream::Cancel(size_t index) {
  if (!sent_[index].live) return;
  Forget(index);
  engine_.Cancel(sent_[index].id);
}

std::optional<std::pair<size_t, RequestOutput>> RequestStream::Next() {
  std::optional<std::pair<size_t, RequestOutput>> next;
  {
    std::lock_guard lock(inbox_->mutex);
    if (inbox_->outputs.empty()) {
      const bool holds = inbox_->claim != nullptr && inbox_->claim->held() > 0;
      if (holds && inbox_->failure.ok()) inbox_->claim->Reset();
      return std::nullopt;
    }
    next = std::move(inbox_->outputs.front());
    inbox_->outputs.pop_front();
    inbox_->bytes -= BytesOf(next->second);
  }
  if (next->second.finish && sent_[next->first].live) Forget(next->first);
  return next;
}

Status RequestStream::failure() const {
  std::lock_guard lock(inbox_->mutex);
  return inbox_->failure;
}

size_t RequestStream::peak() const {
  std::lock_guard lock(inbox_->mutex);
  return inbox_->claim == nullptr ? 0 : inbox_->claim->peak();
}

size_t RequestStream::asked() const {
  std::lock_guard lock(inbox_->mutex);
  return inbox_->claim == nullptr ? 0 : inbox_->claim->asked();
}

}  // namespace fathom
