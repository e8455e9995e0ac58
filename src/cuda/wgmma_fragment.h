// Tiles of 64 x 64 numbers of 16 bits, between shared memory and the registers of a warpgroup that
// has them as A of a product, or as its packed sums: a warp has 16 tile rows. For sm_90 and up.
#pragma once

#include <cstdint>

namespace fathom {

// `tile`: the shared address of 64 x 64 numbers, K-major and swizzled (wgmma_bf16.h). Columns 16 k
// to 16 k + 15, of which a thread has four `registers`, as of A.
__device__ __forceinline__ uint32_t FragmentAddress(uint32_t tile, int k) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int tile_row = static_cast<int>(threadIdx.x % 128 / 32) * 16 + lane % 16;
  return tile + tile_row * 128 + (((2 * k + lane / 16) ^ (tile_row % 8)) * 16);
}
__device__ __forceinline__ void LoadFragment(uint32_t tile, int k, uint32_t* registers) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(FragmentAddress(tile, k))
               : "memory");
}
__device__ __forceinline__ void StoreFragment(uint32_t tile, int k, const uint32_t* registers) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   FragmentAddress(tile, k)),
               "r"(registers[0]), "r"(registers[1]), "r"(registers[2]), "r"(registers[3])
               : "memory");
}

}  // namespace fathom
