#include "parallel/peer_barrier.h"

#include "cuda/kernels.cuh"
#include "parallel/peer.cuh"

namespace fathom {
namespace kernels {

// All ranks have done what they enqueued before this.
//   data mapping:  one warp; a lane tells one peer this rank's epoch, and awaits that peer's
//   bytes:         four to each peer, and four that it polls in its own memory; eight to the host;
//                  no arithmetic
//   expected time: a store's way to the host; 2.9 us on two H200s (docs/ranks.md)
__global__ void PeerBarrier(PeerView peers, uint64_t wait_bits) {
  AfterPriorKernels();
  MeetPeers(peers, wait_bits);
}

// One thread. Expected time: a launch's, some 2 us; not measured.
__global__ void CountMeeting(PeerView peers, uint64_t wait_bits) {
  AfterPriorKernels();
  TellHost(peers, wait_bits, ++peers.counters->packets);
}

}  // namespace kernels

void LaunchPeerBarrier(const PeerView& peers, uint64_t wait_bits, cudaStream_t stream) {
  kernels::LaunchOverlapped(kernels::PeerBarrier, 1, kWarp, 0, stream, peers, wait_bits);
}

void LaunchTellHost(const PeerView& peers, uint64_t wait_bits, cudaStream_t stream) {
  kernels::LaunchOverlapped(kernels::CountMeeting, 1, 1, 0, stream, peers, wait_bits);
}

}  // namespace fathom
