// wgmma with E4M3 operands and fp32 accumulators: D[64, N] += A[64, 32] B[N, 32]^T, operands in
// shared memory with K innermost, tile rows of 128 bytes (wgmma_bf16.h, WgmmaOperand: the next
// 32 of K are 32 bytes, 2 of the operand, further). PTX ISA 9.0, "wgmma.mma_async". For sm_90a.
//
// Order of use and layout of accumulators: as in wgmma_bf16.h. The tensor core adds the 32 products
// and the accumulator with about 14 bits: sums over many channels belong in other registers.
#pragma once

#include <cstdint>

#include "cuda/wgmma_bf16.h"

namespace fathom {

#define FATHOM_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FATHOM_D16(i) FATHOM_D4(i), FATHOM_D4(i + 4), FATHOM_D4(i + 8), FATHOM_D4(i + 12)

// B of eight tile rows, which may have no swizzle.
struct WgmmaB {
  uint64_t descriptor;  // WgmmaDescriptor, or WgmmaPlainDescriptor
};

// d (+)= A B^T; `accumulate` false overwrites d. N is twice the array's size.
__device__ __forceinline__ void WgmmaE4M3(float (&d)[4], uint32_t a, WgmmaB b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, %4, %5, p, 1, 1;\n}\n"
      : FATHOM_D4(0)
      : "l"(WgmmaDescriptor(a)), "l"(b.descriptor), "r"(static_cast<int>(accumulate)));
}
__device__ __forceinline__ void WgmmaE4M3(float (&d)[8], uint32_t a, uint32_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7"
      "}, %8, %9, p, 1, 1;\n}\n"
      : FATHOM_D4(0), FATHOM_D4(4)
      : "l"(WgmmaDescriptor(a)), "l"(WgmmaDescriptor(b)), "r"(static_cast<int>(accumulate)));
}
__device__ __forceinline__ void WgmmaE4M3(float (&d)[16], uint32_t a, uint32_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
      "}, %16, %17, p, 1, 1;\n}\n"
      : FATHOM_D16(0)
      : "l"(WgmmaDescriptor(a)), "l"(WgmmaDescriptor(b)), "r"(static_cast<int>(accumulate)));
}
__device__ __forceinline__ void WgmmaE4M3(float (&d)[32], uint32_t a, uint32_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, p, 1, 1;\n}\n"
      : FATHOM_D16(0), FATHOM_D16(16)
      : "l"(WgmmaDescriptor(a)), "l"(WgmmaDescriptor(b)), "r"(static_cast<int>(accumulate)));
}
__device__ __forceinline__ void WgmmaE4M3(float (&d)[64], uint32_t a, uint32_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1;\n}\n"
      : FATHOM_D16(0), FATHOM_D16(16), FATHOM_D16(32), FATHOM_D16(48)
      : "l"(WgmmaDescriptor(a)), "l"(WgmmaDescriptor(b)), "r"(static_cast<int>(accumulate)));
}

__device__ __forceinline__ void WgmmaE4M3(float (&d)[96], uint32_t a, uint32_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
      "}, %96, %97, p, 1, 1;\n}\n"
      : FATHOM_D16(0), FATHOM_D16(16), FATHOM_D16(32), FATHOM_D16(48), FATHOM_D16(64),
        FATHOM_D16(80)
      : "l"(WgmmaDescriptor(a)), "l"(WgmmaDescriptor(b)), "r"(static_cast<int>(accumulate)));
}

// A in registers: a[0], a[1] are columns 4(t%4) + 0 to 3 of tile row 16w + t/4 and of tile row + 8
// of thread t of warp w; a[2], a[3] the same, columns + 16.
__device__ __forceinline__ void WgmmaE4M3(float (&d)[8], const uint32_t (&a)[4], uint32_t b,
                                          bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7"
      "}, {%8, %9, %10, %11}, %12, p, 1, 1;\n}\n"
      : FATHOM_D4(0), FATHOM_D4(4)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(WgmmaDescriptor(b)),
        "r"(static_cast<int>(accumulate)));
}
__device__ __forceinline__ void WgmmaE4M3(float (&d)[16], const uint32_t (&a)[4], uint32_t b,
                                          bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
      "}, {%16, %17, %18, %19}, %20, p, 1, 1;\n}\n"
      : FATHOM_D16(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(WgmmaDescriptor(b)),
        "r"(static_cast<int>(accumulate)));
}

#undef FATHOM_D16
#undef FATHOM_D4

}  // namespace fathom
