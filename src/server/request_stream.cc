#include "server/request_stream.h"

#include "base/check.h"

namespace fathom {

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
    if (!inbox.wake) continue;
    inbox.outputs.emplace_back(address.index, std::move(output));
    // One call is enough until all outputs are taken.
    if (inbox.outputs.size() == 1) inbox.wake();
  }
}

RequestStream::RequestStream(EngineOutputs& outputs, EngineClient& engine,
                             std::function<void()> wake)
    : outputs_(outputs), engine_(engine), inbox_(std::make_shared<EngineOutputs::Inbox>()) {
  inbox_->wake = std::move(wake);
}

RequestStream::~RequestStream() {
  {
    std::lock_guard lock(inbox_->mutex);
    inbox_->wake = nullptr;
    inbox_->outputs.clear();
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
    if (inbox_->outputs.empty()) return std::nullopt;
    next = std::move(inbox_->outputs.front());
    inbox_->outputs.pop_front();
  }
  if (next->second.finish && sent_[next->first].live) Forget(next->first);
  return next;
}

}  // namespace fathom
