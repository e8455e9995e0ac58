// What blocks of a cluster do in each other's shared memory, which is laid out alike in all of
// them: an address of one's own names the same place in a peer. A peer must have begun (ClusterSync
// of fence.h) and must not have ended. PTX ISA 9.0, "mapa", "st.async", "cp.async.bulk". For sm_90
// and up.
#pragma once

#include <cstdint>

#include "cuda/mbarrier.h"

namespace fathom {

// The place of `pointer`, of this block's shared memory, in block `rank` of the cluster.
__device__ __forceinline__ uint32_t PeerAddress(const void* pointer, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(SharedAddress(pointer)), "r"(rank));
  return address;
}

// Stores a value there; its bytes count at a barrier of the same block.
__device__ __forceinline__ void StoreAtPeer(uint32_t to, float value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
      "r"(__float_as_uint(value)), "r"(barrier)
      : "memory");
}

// Copies `bytes` (a multiple of 16) of this block's shared memory there, without waiting; they
// count at a barrier of the same block. What threads wrote of them is fenced before
// (FenceAsyncShared).
__device__ __forceinline__ void CopyToPeer(uint32_t to, const void* from, uint32_t bytes,
                                           uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "r"(SharedAddress(from)), "r"(bytes), "r"(barrier)
      : "memory");
}

}  // namespace fathom
