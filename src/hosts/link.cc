#include "hosts/link.h"

#include <chrono>
#include <utility>

#include "base/log.h"

namespace fathom {
namespace {

constexpr std::chrono::seconds kBetweenSigns{1}, kSilence{8};
constexpr uint64_t kMaxMessageBytes = uint64_t{512} << 20;  // a step's prompts, and masks
constexpr size_t kMaxWaitingBytes = size_t{1} << 30;

}  // namespace

HostLink::HostLink(Socket socket, std::string name, OnMessage on_message, OnEnd on_end)
    : socket_(std::move(socket)),
      name_(std::move(name)),
      on_message_(std::move(on_message)),
      on_end_(std::move(on_end)) {
  socket_.SetTimeout(kSilence);
  sender_ = std::thread([this] { SendLoop(); });
  receiver_ = std::thread([this] { ReceiveLoop(); });
}

HostLink::~HostLink() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  sender_.join();  // has sent what there was, or could not
  Shutdown();
  receiver_.join();
}

void HostLink::Send(uint32_t kind, std::string bytes) {
  {
    std::lock_guard lock(mutex_);
    bytes_to_send_ += bytes.size();
    if (bytes_to_send_ <= kMaxWaitingBytes) to_send_.push_back({kind, std::move(bytes)});
    if (bytes_to_send_ > kMaxWaitingBytes) socket_.Shutdown();  // which the receiver tells
  }
  changed_.notify_all();
}

void HostLink::Leave() {
  Send(kLeave, "");
}

void HostLink::Shutdown() {
  socket_.Shutdown();
}

void HostLink::SendLoop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const bool news =
        changed_.wait_for(lock, kBetweenSigns, [this] { return closing_ || !to_send_.empty(); });
    Frame frame{.kind = kSignOfLife};
    if (!to_send_.empty()) {
      frame = std::move(to_send_.front());
      to_send_.pop_front();
      bytes_to_send_ -= frame.bytes.size();
    } else if (news) {
      return;  // closing
    }
    lock.unlock();
    const Status sent = SendFrame(socket_, frame.kind, frame.bytes);
    lock.lock();
    if (!sent.ok()) {
      socket_.Shutdown();
      changed_.wait(lock, [this] { return closing_; });
      return;
    }
  }
}

Status HostLink::NextMessage() {
  Frame frame = TRY(ReceiveFrame(socket_, kMaxMessageBytes));
  if (frame.kind == kSignOfLife) return {};
  if (frame.kind != kLeave) return on_message_(frame.kind, std::move(frame.bytes));
  left_ = true;
  return Unavailable("it has left");
}

void HostLink::ReceiveLoop() {
  Status status;
  while (status.ok()) status = NextMessage();
  socket_.Shutdown();
  on_end_(left_ ? Status() : status.WithContext(name_));
}

}  // namespace fathom
