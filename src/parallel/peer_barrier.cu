#include "parallel/peer_barrier.h"

#include "cuda/kernels.cuh"
#include "parallel/peer.cuh"

namespace fathom {
namespace kernels {

// All ranks have done what they enqueued before this.
//   data mapping:  one warp; a lane tells one peer this rank's epoch, and awaits that peer's
//   bytes:         four to each peer, and four that it polls in its own memory; no arithmetic
//   expected time: a store's way over NVLink; 2.1 us for one like it on two H200s (docs/ranks.md)
__global__ void PeerBarrier(PeerView peers) {
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

}  // namespace kernels

void LaunchPeerBarrier(const PeerView& peers, cudaStream_t stream) {
  kernels::LaunchOverlapped(kernels::PeerBarrier, 1, kWarp, 0, stream, peers);
}

}  // namespace fathom
