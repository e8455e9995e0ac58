#include "engine/request_inbox.h"

#include <utility>

namespace fathom {

Status RequestInbox::Put(GenerateRequest request) {
  {
    std::lock_guard lock(mutex_);
    if (news_.stopped) return stopped_;
    if (static_cast<int64_t>(live_.size()) >= max_live_) {
      return ResourceExhausted(
          "{} requests are running and waiting, and there is room for no more: "
          "try again later",
          live_.size());
    }
    if (!live_.insert(request.id).second) {
      return InvalidArgument("request id {} is in use: every request needs its own",
                             Raw(request.id));
    }
    news_.requests.push_back(std::move(request));
  }
  changed_.notify_one();
  return {};
}

void RequestInbox::Cancel(RequestId id) {
  {
    std::lock_guard lock(mutex_);
    if (!live_.contains(id) || !cancelled_.insert(id).second) return;
    news_.cancels.push_back(id);
  }
  changed_.notify_one();
}

void RequestInbox::ResetPrefixCache() {
  {
    std::lock_guard lock(mutex_);
    news_.reset_prefix_cache = true;
  }
  changed_.notify_one();
}

void RequestInbox::Stop(Status why) {
  {
    std::lock_guard lock(mutex_);
    if (!news_.stopped) stopped_ = std::move(why);
    news_.stopped = true;
  }
  changed_.notify_one();
}

bool RequestInbox::HasRoom(int64_t requests) const {
  std::lock_guard lock(mutex_);
  return !news_.stopped && static_cast<int64_t>(live_.size()) + requests <= max_live_;
}

int64_t RequestInbox::untaken() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(news_.requests.size());
}

RequestInbox::News RequestInbox::Take() {
  std::lock_guard lock(mutex_);
  News taken = std::exchange(news_, {});
  news_.stopped = taken.stopped;  // and stays so
  return taken;
}

bool RequestInbox::WaitForNews() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] {
    return news_.stopped || news_.reset_prefix_cache || !news_.requests.empty() ||
           !news_.cancels.empty();
  });
  return !news_.stopped;
}

void RequestInbox::Forget(std::span<const RequestId> ended) {
  std::lock_guard lock(mutex_);
  for (RequestId id : ended) {
    live_.erase(id);
    cancelled_.erase(id);
  }
}

}  // namespace fathom
