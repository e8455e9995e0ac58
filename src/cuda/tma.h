// TMA, the copy engine of Hopper: tiles of a tensor in global memory to shared memory, by
// one thread. Maps are made on the host (tensor_map.h) and passed as
// `const __grid_constant__ CUtensorMap`. PTX ISA 9.0, "cp.async.bulk.tensor". For sm_90 and up.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/l2_policy.h"
#include "cuda/mbarrier.h"

namespace fathom {

__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}

// Loads one box whose first element has these coordinates, innermost first; the box's bytes count
// at `full`. What lies outside the tensor arrives as zeros, and counts too. `to` is aligned to 128
// bytes, to 1024 where the map swizzles by 128 bytes.
__device__ __forceinline__ void TmaLoad2(void* to, const CUtensorMap* map, Mbarrier& full,
                                         uint64_t policy, int32_t x, int32_t y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(SharedAddress(to)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(full.address()), "l"(policy), "r"(x), "r"(y)
      : "memory");
}
__device__ __forceinline__ void TmaLoad3(void* to, const CUtensorMap* map, Mbarrier& full,
                                         uint64_t policy, const int32_t (&at)[3]) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(SharedAddress(to)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(full.address()), "l"(policy), "r"(at[0]),
      "r"(at[1]), "r"(at[2])
      : "memory");
}
__device__ __forceinline__ void TmaLoad4(void* to, const CUtensorMap* map, Mbarrier& full,
                                         uint64_t policy, const int32_t (&at)[4]) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(SharedAddress(to)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(full.address()), "l"(policy), "r"(at[0]),
      "r"(at[1]), "r"(at[2]), "r"(at[3])
      : "memory");
}

// The same to the L2 only.
__device__ __forceinline__ void TmaPrefetch4(const CUtensorMap* map, const int32_t (&at)[4]) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(
                   reinterpret_cast<uint64_t>(map)),
               "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
               : "memory");
}

// As above, to the same place in every block of the cluster whose bit is set in `blocks`; each
// block's own barrier at the place of `full` counts the bytes.
__device__ __forceinline__ void TmaLoadMulticast2(void* to, const CUtensorMap* map, Mbarrier& full,
                                                  uint64_t policy, uint16_t blocks,
                                                  const int32_t (&at)[2]) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%5, %6}], [%2], %3, %4;" ::"r"(
          SharedAddress(to)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(full.address()), "h"(blocks), "l"(policy),
      "r"(at[0]), "r"(at[1])
      : "memory");
}
__device__ __forceinline__ void TmaLoadMulticast3(void* to, const CUtensorMap* map, Mbarrier& full,
                                                  uint64_t policy, uint16_t blocks,
                                                  const int32_t (&at)[3]) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%5, %6, %7}], [%2], %3, %4;" ::"r"(
          SharedAddress(to)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(full.address()), "h"(blocks), "l"(policy),
      "r"(at[0]), "r"(at[1]), "r"(at[2])
      : "memory");
}

// Without a map: `bytes` (a multiple of 16) that lie together, aligned to 16 bytes.
__device__ __forceinline__ void BulkLoad(void* to, const void* from, uint32_t bytes,
                                         Mbarrier& full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(SharedAddress(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(full.address())
      : "memory");
}
// From shared memory; what threads wrote there is fenced before (FenceAsyncShared).
__device__ __forceinline__ void BulkStore(void* to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(to)),
               "r"(SharedAddress(from)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until this thread's stores are done, and visible to it.
__device__ __forceinline__ void AwaitBulkStores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace fathom
