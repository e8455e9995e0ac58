// Rounds of large messages between GPUs: each rank writes into the others' windows, all meet
// (GpuRanks::Meet), each reads its own. Peers' windows alternate with the barrier's epochs: a rank
// that has passed one knows that its peers have read what came ahead of the one before.
#pragma once

#include "cuda/kernels.cuh"
#include "parallel/peer.cuh"

namespace fathom::kernels {

// The window of `rank` for what is written ahead of the next meeting, or read behind the last one.
template <class T>
__device__ T* WindowAhead(const PeerView& peers, int rank) {
  return reinterpret_cast<T*>(peers.windows[rank][(peers.counters->barrier + 1) & 1]);
}
template <class T>
__device__ T* WindowBehind(const PeerView& peers) {
  return reinterpret_cast<T*>(peers.windows[peers.rank][peers.counters->barrier & 1]);
}

}  // namespace fathom::kernels
