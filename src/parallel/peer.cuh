// How kernels of ranks wait for each other, and how small messages travel.
#pragma once

#include <cstdint>

#include "parallel/peer_view.h"
#include "parallel/wait_word.h"

namespace fathom::kernels {

__device__ inline void StoreRelease(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ inline uint32_t LoadAcquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// Spins until `there` says so, or the host gives up.
template <class There>
__device__ inline void Await(const PeerView& peers, const There& there) {
  constexpr uint32_t kSpins = 4096;  // reading the host's memory costs microseconds
  for (uint32_t spins = 1; !there(); ++spins) {
    if (spins % kSpins == 0 && *reinterpret_cast<const volatile uint32_t*>(peers.abort) != 0)
      return;
  }
}

// A packet of NCCL's LL protocol: eight bytes of numbers in sixteen, each half of which is written
// at once, with the epoch that it belongs to.
__device__ inline void StorePacket(uint4* to, uint2 numbers, uint32_t epoch) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to), "r"(numbers.x),
               "r"(epoch), "r"(numbers.y)
               : "memory");
}
// Whether the packet is there; then its numbers.
__device__ inline bool LoadPacket(const uint4* from, uint32_t epoch, uint2& numbers) {
  uint32_t first, second;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(numbers.x), "=r"(first), "=r"(numbers.y), "=r"(second)
               : "l"(from)
               : "memory");
  return first == epoch && second == epoch;
}

// Tells the host what the rank waits for: one thread, once the peers have what they wait for of
// this one. Without a fence; but a kernel has ended once its stores are there, so that a barrier
// with nothing else to do is 0.9 us longer for it, by whichever warp.
__device__ inline void TellHost(const PeerView& peers, uint64_t wait_bits, uint32_t number) {
  *static_cast<volatile uint64_t*>(peers.waits_for) = wait_bits | number % Meeting::kNumbers;
}

// All ranks have done what they enqueued before this. One warp.
__device__ inline void MeetPeers(const PeerView& peers, uint64_t wait_bits) {
  const uint32_t epoch = peers.counters->barrier + 1, number = peers.counters->packets + epoch;
  __syncwarp();
  const int peer = threadIdx.x;
  if (peer < peers.size) {
    StoreRelease(peers.exchange[peer]->barrier_flags[peers.rank], epoch);
    if (peer == 0) TellHost(peers, wait_bits, number);
    const uint32_t* flag = peers.mine->barrier_flags[peer];
    Await(peers, [&] { return static_cast<int32_t>(LoadAcquire(flag) - epoch) >= 0; });
  }
  __syncwarp();
  if (threadIdx.x == 0) peers.counters->barrier = epoch;
}

// Counts an epoch of `counter` that all of the rank's blocks have read: kernels that come after
// this one are in the next. Whole blocks; it costs least while packets are on their way.
__device__ inline void CountEpoch(const PeerView& peers, uint32_t* counter, uint32_t epoch,
                                  unsigned blocks) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(&peers.counters->blocks_here, 1) != blocks - 1) return;
  peers.counters->blocks_here = 0;
  *counter = epoch;
}

}  // namespace fathom::kernels
