// wgmma with BF16 or FP16 operands and fp32 accumulators: a warpgroup (four warps, the first's
// index a multiple of 4) multiplies 64 x 16 by 16 x N. PTX ISA 9.0, "wgmma.mma_async". For sm_90a.
//
// Order of use: WgmmaFence, products, WgmmaCommit, WgmmaWait. Until the wait, neither accumulators
// nor A registers may be touched.
//
// Accumulators: thread t of warp w holds, for j = 0..N/8-1, d[4j + 0, 1] of tile row 16w + t/4,
// columns 8j + 2(t%4) + 0, 1, and d[4j + 2, 3] of tile row + 8. A in registers: a[0], a[1] are
// columns 2(t%4) + 0, 1 of tile row 16w + t/4 and of tile row + 8; a[2], a[3] the same, columns
// + 8.
#pragma once

#include <cstdint>

#include "cuda/mbarrier.h"

namespace fathom {

__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving uses of accumulators across this point.
template <int kCount>
__device__ __forceinline__ void WgmmaHold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Describes an operand in shared memory of 64 x 64 tiles [tile row][64 elements], 128 bytes a tile
// row, swizzled by 128 bytes (16-byte chunk c of tile row r lies at chunk c ^ (r % 8)), aligned to
// 1024 bytes: what TMA writes for a box of 64 BF16 with CU_TENSOR_MAP_SWIZZLE_128B. Further
// elements of a tile row lie in further tiles, `tile_stride` bytes apart.
//
// K-major (tile rows are M or N; the 64 elements run along K): the next 16 of K are 32
// bytes further in a tile. MN-major (tile rows run along K; the "transposed" forms below): the next
// 16 of K are 16 tile rows, 2048 bytes, further; N or M beyond 64 is found by tile_stride.
//
// It is the lower half of a descriptor, in which a unit is 16 bytes. The upper one is the same for
// all, and steps are added to this half alone: in a chain that adds 64 bits a product of 16 columns
// takes 28 cycles, not 21.
__device__ __forceinline__ uint32_t WgmmaOperand(uint32_t address, uint32_t tile_stride = 16) {
  return ((tile_stride & 0x3ffff) >> 4) << 16 | ((address & 0x3ffff) >> 4);
}
__device__ __forceinline__ uint64_t WgmmaDescriptor(uint32_t operand) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightTileRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightTileRows | operand;
}

// The same of K-major tile rows that are not swizzled: pieces of eight tile rows by 16 bytes, 128
// bytes each, which lie `tile_stride` (of WgmmaOperand) apart along K. For eight tile rows.
__device__ __forceinline__ uint64_t WgmmaPlainDescriptor(uint32_t operand) {
  return operand;
}

enum class Major : int { kK = 0, kMn = 1 };

// d (+)= A B. Add(d, a, b, accumulate): accumulate false overwrites d.
template <int kN>
struct WgmmaBf16;
template <int kN>
struct WgmmaF16;

#define FATHOM_R0                                                          \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FATHOM_R32                                                                   \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FATHOM_R64                                                                   \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FATHOM_R96                                                                               \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define FATHOM_R0_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FATHOM_R0_16 FATHOM_R0_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FATHOM_D8(i)                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define FATHOM_D32(i) FATHOM_D8(i), FATHOM_D8(i + 8), FATHOM_D8(i + 16), FATHOM_D8(i + 24)

// The struct, its type and N; its registers as text and as operands; the numbers of the operands
// after them.
#define FATHOM_WGMMA(STRUCT, TYPE, N, REGISTERS, OPERANDS, P0, P1, P2, P3, P4, P5, P6, P7)        \
  template <>                                                                                     \
  struct STRUCT<N> {                                                                              \
    /* A and B in shared memory. */                                                               \
    template <Major kMajorA, Major kMajorB>                                                       \
    __device__ static __forceinline__ void Add(float (&d)[N / 2], uint32_t a, uint32_t b,         \
                                               bool accumulate) {                                 \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P2                                        \
                   ", 0;\n"                                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS \
                   "}, %" P0 ", %" P1 ", p, 1, 1, %" P3 ", %" P4 ";\n}\n"                         \
                   : OPERANDS                                                                     \
                   : "l"(WgmmaDescriptor(a)), "l"(WgmmaDescriptor(b)),                            \
                     "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kMajorA)),           \
                     "n"(static_cast<int>(kMajorB)));                                             \
    }                                                                                             \
    /* A in registers, B in shared memory. */                                                     \
    template <Major kMajorB>                                                                      \
    __device__ static __forceinline__ void Add(float (&d)[N / 2], const uint32_t* a, uint32_t b,  \
                                               bool accumulate) {                                 \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P5                                        \
                   ", 0;\n"                                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS \
                   "}, {%" P0 ", %" P1 ", %" P2 ", %" P3 "}, %" P4 ", p, 1, 1, %" P6 ";\n}\n"     \
                   : OPERANDS                                                                     \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(WgmmaDescriptor(b)),         \
                     "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kMajorB)));          \
    }                                                                                             \
  };

#define FATHOM_O8 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define FATHOM_O16 FATHOM_D8(0)
#define FATHOM_O32 FATHOM_D8(0), FATHOM_D8(8)
#define FATHOM_O64 FATHOM_D32(0)
#define FATHOM_O128 FATHOM_D32(0), FATHOM_D32(32)
#define FATHOM_O256 FATHOM_D32(0), FATHOM_D32(32), FATHOM_D32(64), FATHOM_D32(96)
#define FATHOM_S128 FATHOM_R0 ", " FATHOM_R32
#define FATHOM_O144 FATHOM_O128, FATHOM_D8(64)
#define FATHOM_S144 FATHOM_S128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define FATHOM_S256 FATHOM_S128 ", " FATHOM_R64 ", " FATHOM_R96
// Of few columns.
#define FATHOM_WGMMA_FEW(NAME, TYPE)                                                               \
  FATHOM_WGMMA(NAME, TYPE, 16, FATHOM_R0_8, FATHOM_O16, "8", "9", "10", "11", "12", "13", "14",    \
               "15")                                                                               \
  FATHOM_WGMMA(NAME, TYPE, 32, FATHOM_R0_16, FATHOM_O32, "16", "17", "18", "19", "20", "21", "22", \
               "23")                                                                               \
  FATHOM_WGMMA(NAME, TYPE, 64, FATHOM_R0, FATHOM_O64, "32", "33", "34", "35", "36", "37", "38",    \
               "39")
FATHOM_WGMMA_FEW(WgmmaF16, "f16")
FATHOM_WGMMA_FEW(WgmmaBf16, "bf16")
FATHOM_WGMMA(WgmmaBf16, "bf16", 8, "%0, %1, %2, %3", FATHOM_O8, "4", "5", "6", "7", "8", "9", "10",
             "11")
FATHOM_WGMMA(WgmmaBf16, "bf16", 128, FATHOM_S128, FATHOM_O128, "64", "65", "66", "67", "68", "69",
             "70", "71")
FATHOM_WGMMA(WgmmaBf16, "bf16", 144, FATHOM_S144, FATHOM_O144, "72", "73", "74", "75", "76", "77",
             "78", "79")
FATHOM_WGMMA(WgmmaBf16, "bf16", 256, FATHOM_S256, FATHOM_O256, "128", "129", "130", "131", "132",
             "133", "134", "135")

#undef FATHOM_R0
#undef FATHOM_R32
#undef FATHOM_R64
#undef FATHOM_R96
#undef FATHOM_R0_8
#undef FATHOM_R0_16
#undef FATHOM_D8
#undef FATHOM_D32
#undef FATHOM_O8
#undef FATHOM_O16
#undef FATHOM_O32
#undef FATHOM_O64
#undef FATHOM_O128
#undef FATHOM_O144
#undef FATHOM_O256
#undef FATHOM_S128
#undef FATHOM_S144
#undef FATHOM_S256
#undef FATHOM_WGMMA_FEW
#undef FATHOM_WGMMA

}  // namespace fathom
