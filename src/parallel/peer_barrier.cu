#include "parallel/peer_barrier.h"

#include "cuda/kernels.cuh"
#include "parallel/peer.cuh"

namespace fathom {
namespace kernels {

// All ranks have done what they enqueued before this.
//   data mapping:  one warp; a lane tells one peer this rank's epoch, and awaits that peer's
//   bytes:         four to each peer, and four that it polls in its own memory; no arithmetic
//   expected time: a store's way over NVLink; 2.0 us on two H200s (docs/ranks.md)
__global__ void PeerBarrier(PeerView peers) {
  AfterPriorKernels();
  MeetPeers(peers);
}

}  // namespace kernels

void LaunchPeerBarrier(const PeerView& peers, cudaStream_t stream) {
  kernels::LaunchOverlapped(kernels::PeerBarrier, 1, kWarp, 0, stream, peers);
}

}  // namespace fathom
