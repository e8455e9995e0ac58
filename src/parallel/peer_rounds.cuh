// Rounds of large messages between GPUs: each rank writes into its peers' windows, all meet, each
// reads its own. Windows alternate with the barrier's epochs: a rank that has passed one knows that
// its peers have read what came ahead of the one before.
#pragma once

#include "cuda/kernels.cuh"
#include "parallel/peer.cuh"

namespace fathom::kernels {

// The window of `rank` for what is written ahead of the next barrier, or read behind the last one.
template <class T>
__device__ T* WindowAhead(const PeerView& peers, int rank) {
  return reinterpret_cast<T*>(peers.exchange[rank]->windows[(peers.counters->barrier + 1) & 1]);
}
template <class T>
__device__ T* WindowBehind(const PeerView& peers) {
  return reinterpret_cast<T*>(peers.mine->windows[peers.counters->barrier & 1]);
}

// All ranks have done what they enqueued before this.
//   data mapping:  one warp; a lane tells one peer this rank's epoch, and awaits that peer's
//   bytes:         four to each peer, and four that it polls in its own memory; no arithmetic
//   expected time: a store's way over NVLink; 2.1 us for one like it on two H200s (docs/ranks.md)
static __global__ void PeerBarrier(PeerView peers) {
  AfterPriorKernels();
  const uint32_t epoch = peers.counters->barrier + 1;
  __syncwarp();
  const int peer = threadIdx.x;
  if (peer < peers.size) {
    __threadfence_system();
    StoreRelease(peers.exchange[peer]->barrier_flags[peers.rank], epoch);
    const uint32_t* flag = peers.mine->barrier_flags[peer];
    Await(peers, [&] { return static_cast<int32_t>(LoadAcquire(flag) - epoch) >= 0; });
  }
  __syncwarp();
  if (threadIdx.x == 0) peers.counters->barrier = epoch;
}

inline void LaunchPeerBarrier(const PeerView& peers, cudaStream_t stream) {
  LaunchOverlapped(PeerBarrier, 1, kWarp, 0, stream, peers);
}

}  // namespace fathom::kernels
