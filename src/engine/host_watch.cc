#include "engine/host_watch.h"

#include <utility>

#include "engine/host_messages.h"

namespace fathom {

HostWatch::HostWatch(Hosts& hosts, std::vector<Device*> devices,
                     std::vector<std::shared_ptr<RemoteResults>> remote)
    : hosts_(hosts), devices_(std::move(devices)), remote_(std::move(remote)) {
  if (!remote_.empty()) {
    hosts_.Listen([this](int host, uint32_t kind, const std::string& bytes) -> Status {
      const GroupMessage of = TRY(SplitGroup(bytes));
      for (const auto& results : remote_) {
        if (host != results->host || of.group != static_cast<uint32_t>(results->group)) continue;
        if (kind == kResultMessage) return results->Take(of.message);
        if (kind == kRanksMessage) return results->TakeRanks(of.message, hosts_.ranks_each());
      }
      return DataLoss("a message of kind {} of group {}", kind, of.group);
    });
  }
  hosts_.OnEnd([this](const Status& why) { End(why); });
}

HostWatch::~HostWatch() {
  hosts_.OnEnd(nullptr);
  if (!remote_.empty()) hosts_.Listen([](int, uint32_t, const std::string&) { return Status(); });
}

void HostWatch::SetEngine(Engine* engine) {
  std::lock_guard lock(mutex_);
  engine_ = engine;
  if (engine_ != nullptr && ended_ && !ended_->ok()) engine_->Abandon(*ended_);
}

void HostWatch::End(const Status& why) {
  if (!why.ok()) {
    for (Device* device : devices_) device->Abandon(why.message());
    for (const auto& results : remote_) results->Fail(why);
  }
  std::lock_guard lock(mutex_);
  if (!ended_) ended_ = why;
  if (!why.ok() && engine_ != nullptr) engine_->Abandon(why);
  changed_.notify_all();
}

Status HostWatch::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ended_.has_value(); });
  return *ended_;
}

void HostWatch::Stop() {
  std::lock_guard lock(mutex_);
  if (!ended_) ended_ = Status();
  changed_.notify_all();
}

}  // namespace fathom
