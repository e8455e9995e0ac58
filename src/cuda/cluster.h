// What blocks of a cluster do in each other's shared memory, which is laid out alike in all of
// them: an address of one's own names the same place in a peer. A peer must have begun (ClusterSync
// of fence.h) and must not have ended. PTX ISA 9.0, "mapa", "st.async". For sm_90
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

// The same of one word or four, which those see there who meet this thread (ClusterSync).
__device__ __forceinline__ void StoreAtPeer(uint32_t to, uint32_t value) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
__device__ __forceinline__ void StoreAtPeer(uint32_t to, float4 value) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

// What this thread did or has seen is seen by blocks of the cluster that hear of it from now on.
__device__ __forceinline__ void FenceCluster() {
  asm volatile("fence.acq_rel.cluster;" ::: "memory");
}

}  // namespace fathom
