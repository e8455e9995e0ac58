// How far the ranks of a host may be apart while they read a checkpoint.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/status.h"

namespace fathom {

// Those of a stage read the same tensors in the same order, and none begins to read while it is
// more than a window of bytes ahead of the slowest: what one has read from disk is still in memory
// when the last one comes to it, though memory cannot hold the model. Stages read different
// tensors, and do not wait for each other.
// THREAD: a rank's calls come from one thread; those of different ranks at the same time.
class ReadWindow {
 public:
  // `stages`: of each rank of the host.
  explicit ReadWindow(std::vector<int> stages, uint64_t bytes = uint64_t{4} << 30);

  // A rank's end of the window. Without one it has the checkpoint for itself.
  struct Reader {
    ReadWindow* window = nullptr;
    int rank = 0;

    Status Wait() const { return window == nullptr ? Status() : window->Wait(rank); }
    bool Pass(uint64_t bytes) const { return window == nullptr || window->Pass(rank, bytes); }
  };

  // Before something is read: waits while the rank is too far ahead. A failure with which any rank
  // has left, of whatever stage: there is no use in reading on.
  Status Wait(int rank);
  // The rank has read its next tensor, of so many bytes, and does not need it again; true if it was
  // the last of its stage.
  bool Pass(int rank, uint64_t bytes);
  // The rank reads no more, and nobody waits for it. REQUIRED of each, however its reading ended.
  void Leave(int rank, const Status& status);

 private:
  uint64_t Slowest(int stage) const;  // under mutex_

  const std::vector<int> stages_;
  const uint64_t bytes_;
  mutable std::mutex mutex_;
  std::condition_variable moved_;
  std::vector<uint64_t> passed_;  // guarded by mutex_: bytes of each rank; of one that left, all
  Status failure_;                // guarded by mutex_: the first one
};

}  // namespace fathom
