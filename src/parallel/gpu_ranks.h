// Ranks that are GPUs: each writes what is for the others into windows, all meet, and each reads
// its own.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>

#include "parallel/communicator.h"
#include "parallel/peer_view.h"
#include "parallel/wait_word.h"

namespace fathom {

// Bytes of a window.
struct WindowPart {
  size_t at = 0, bytes = 0;
};
// What rank `from` writes into the window of rank `to`, at most: by sizes alone, so that all ranks
// say the same.
using WindowParts = std::function<WindowPart(int from, int to)>;

class GpuRanks : public Communicator {
 public:
  // What was written ahead of this on the stream, by any rank, may be read behind it. `wait_bits`:
  // WaitBits of the op that meets.
  virtual void Meet(cudaStream_t stream, uint64_t wait_bits, const WindowParts& parts) = 0;
  // Whether kernels write into the other ranks' own memory, and see what these write.
  virtual bool linked() const = 0;

  const PeerView& view() const { return view_; }
  std::optional<Meeting> LastMeeting() const override {
    return MeetingOf(std::atomic_ref(*view_.waits_for).load(std::memory_order_relaxed));
  }

 protected:
  explicit GpuRanks(const PeerView& view) : Communicator(view.rank, view.size), view_(view) {}

 private:
  const PeerView view_;
};

}  // namespace fathom
