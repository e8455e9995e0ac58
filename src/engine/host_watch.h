// What comes to a host from the others of its engine: results, and that one is lost.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "engine/remote_executor.h"
#include "hosts/hosts.h"
#include "tensor/device.h"

namespace fathom {

class HostWatch {
 public:
  // Hands results to `remote`, which only the first host has. When a host is lost it fails these
  // and the devices, which with `hosts` must outlive it.
  HostWatch(Hosts& hosts, std::vector<Device*> devices,
            std::vector<std::shared_ptr<RemoteResults>> remote);
  ~HostWatch();

  Hosts& hosts() const { return hosts_; }
  // Abandons this engine too; null: none, from the return on. THREAD: any.
  void SetEngine(Engine* engine);

  // Waits for the end, or Stop(): OK if the first host took its leave, or this one does.
  Status Wait();
  void Stop();  // THREAD: any

 private:
  void End(const Status& why);

  Hosts& hosts_;
  const std::vector<Device*> devices_;
  const std::vector<std::shared_ptr<RemoteResults>> remote_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  Engine* engine_ = nullptr;
  std::optional<Status> ended_;
};

// As long as it lives, the engine hears of lost hosts; and at its end they of a failed engine.
class WatchedEngine {
 public:
  WatchedEngine(HostWatch& watch, Engine& engine) : watch_(watch), engine_(engine) {
    watch_.SetEngine(&engine_);
  }
  ~WatchedEngine() {
    watch_.SetEngine(nullptr);
    if (const Status status = engine_.status(); !status.ok()) watch_.hosts().Fail(status);
  }

 private:
  HostWatch& watch_;
  Engine& engine_;
};

}  // namespace fathom
