// Where any thread leaves requests and cancellations for the engine's thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_set>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "engine/messages.h"

namespace fathom {

// Bounded by the requests that live: put, and not yet forgotten.
class RequestInbox {
 public:
  explicit RequestInbox(int64_t max_live) : max_live_(max_live) {}

  // THREAD: any.
  // kResourceExhausted when full, kInvalidArgument for an id that lives, Stop()'s reason once
  // stopped.
  Status Put(GenerateRequest request);
  void Cancel(RequestId id);  // unknown ids are ignored
  void ResetPrefixCache();
  void Stop(Status why);  // the first reason stays
  bool HasRoom(int64_t requests) const;
  int64_t untaken() const;  // requests put that the engine has not taken

  // THREAD: the engine's.
  struct News {
    std::vector<GenerateRequest> requests;
    std::vector<RequestId> cancels;   // each id lives, and stands here once at most
    bool reset_prefix_cache = false;  // before these requests
    bool stopped = false;
  };
  News Take();
  // Blocks until there is news; false once stopped.
  bool WaitForNews();
  void Forget(std::span<const RequestId> ended);

 private:
  const int64_t max_live_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::unordered_set<RequestId> live_;
  std::unordered_set<RequestId> cancelled_;  // of live_
  News news_;
  Status stopped_;  // why
};

}  // namespace fathom
