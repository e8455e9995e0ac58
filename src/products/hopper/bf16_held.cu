// BF16 products of few tokens on Hopper whose weights all blocks' shared memory holds at once.
//   formula:       y[t] = x[t] W^T, dense or per head
//   data mapping:  a block per 32 outputs: half of wgmma's 64 tile rows, while the other half
//                  multiplies what lies behind; tokens are its 8 columns. All weights are asked
//                  for by TMA before the kernels before have ended; then all of x
//   bytes, FLOPs:  W once; x once per block, from the L2; 2 FLOPs a weight and token
//   accumulator:   fp32 in the tensor core, in ascending order: the sums of bf16_gemm_kernel.cuh
//   builds on:     wgmma's chains, which take 20 cycles a product where those of mma.sync take 33
//   expected time: docs/design/bf16-gemm.md
#include "products/hopper/bf16_held.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "cuda/fence.h"
#include "cuda/gpu.h"
#include "cuda/launch_early.cuh"
#include "cuda/mma.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tma.h"
#include "cuda/warp.h"
#include "cuda/wgmma_bf16.h"
#include "products/hopper/gemm_tiles.cuh"

namespace fathom {
namespace bf16_held {
namespace {

constexpr int kThreads = 128, kOut = 32, kTokens = kBf16HeldTokens;
constexpr int kChunkBytes = 2 * kBf16Chunk;  // one tile row of the 128-byte swizzle
constexpr int kWeightBytes = kOut * kChunkBytes, kXBytes = kTokens * kChunkBytes;  // of a chunk
constexpr int kPartChunks = 2, kMostParts = 22;  // chunks that are waited for together
constexpr int kPartChannels = kPartChunks * kBf16Chunk;
constexpr int64_t kShared = 228 * 1024, kMostBlocks = 4;  // of a multiprocessor

struct Args {
  const __nv_bfloat16* x;
  void* y;
  const int32_t* live;
  int64_t x_stride, x_head_stride, y_stride, y_head_stride;
  int32_t out, parts, tokens;
  bool f32, wait_first;
};

__host__ __device__ constexpr int64_t WeightBytes(int64_t parts) {
  return parts * kPartChunks * kWeightBytes;
}
// Weights and x. The half of the tile rows that a block does not want reads a chunk further.
__host__ __device__ constexpr int64_t OperandBytes(int64_t parts) {
  const int64_t x = parts * kPartChunks * kXBytes;
  return WeightBytes(parts) + (x > kWeightBytes ? x : kWeightBytes);
}
constexpr int64_t SharedBytes(int64_t parts) {
  return OperandBytes(parts) + kMostParts * static_cast<int64_t>(sizeof(Mbarrier));
}

// One thread.
__device__ void LoadWeights(Mbarrier* full, uint8_t* weights, const Args& a, const CUtensorMap& map,
                            int32_t channel) {
  const uint64_t policy = EvictFirst();
  for (int32_t part = 0; part < a.parts; ++part) {
    full[part].ArriveExpect(kPartChunks * kWeightBytes);
#pragma unroll
    for (int i = 0; i < kPartChunks; ++i) {
      const int32_t chunk = part * kPartChunks + i;
      TmaLoad2(weights + chunk * kWeightBytes, &map, full[part], policy, chunk * kBf16Chunk,
               channel);
    }
  }
}

// x of all tokens, as wgmma reads it. All threads.
__device__ void LoadTokens(uint8_t* xs, const Args& a) {
  constexpr int kVectors = kBf16Chunk / 8;  // of a chunk
  const __nv_bfloat16* const x = a.x + blockIdx.y * a.x_head_stride;
  for (int32_t i = threadIdx.x; i < a.parts * kPartChunks * kVectors; i += kThreads) {
    const uint32_t to = SharedAddress(xs) + i / kVectors * kXBytes;
#pragma unroll
    for (int token = 0; token < kTokens; ++token) {
      if (token >= a.tokens) break;
      kernels::CopyAsync(to + token * kChunkBytes + (i % kVectors ^ token) * 16,
                         x + token * a.x_stride + i * 8, true);
    }
  }
  kernels::CommitCopies();
  kernels::WaitForCopies<0>();
  FenceAsyncShared();
}

__device__ __forceinline__ void Multiply(float (&sums)[4], Mbarrier* full, const uint8_t* weights,
                                         const uint8_t* xs, int32_t parts) {
  uint32_t w = Uniform(WgmmaOperand(SharedAddress(weights)));
  uint32_t x = Uniform(WgmmaOperand(SharedAddress(xs)));
  const int32_t count = Uniform(parts);
#pragma unroll 1
  for (int32_t part = 0; part < count; ++part) {
    full[part].Wait(0);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < kPartChunks; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        WgmmaBf16<8>::Add<Major::kK, Major::kK>(sums, w + i * (kWeightBytes / 16) + 2 * k,
                                                x + i * (kXBytes / 16) + 2 * k, true);
      }
    }
    WgmmaCommit();
    w = Uniform(w + kPartChunks * (kWeightBytes / 16));
    x = Uniform(x + kPartChunks * (kXBytes / 16));
  }
  WgmmaWait<0>();
  WgmmaHold(sums);
}

__global__ void __launch_bounds__(kThreads)
    Kernel(const __grid_constant__ CUtensorMap weight_map, const __grid_constant__ Args a) {
  extern __shared__ __align__(1024) uint8_t memory[];
  uint8_t* const xs = memory + WeightBytes(a.parts);
  auto* const full = reinterpret_cast<Mbarrier*>(memory + OperandBytes(a.parts));
  const auto channel = static_cast<int32_t>(blockIdx.x) * kOut;  // of the matrix
  if (threadIdx.x == 0) {
    for (int part = 0; part < kMostParts; ++part) full[part].Init(1);
    FenceMbarrierInit();
    LoadWeights(full, memory, a, weight_map, static_cast<int32_t>(blockIdx.y) * a.out + channel);
  }
  if (!a.wait_first) AllowNextKernel();
  WaitForPriorKernels();
  if (a.wait_first) AllowNextKernel();
  const int32_t live = min(__ldcg(a.live), a.tokens);
  LoadTokens(xs, a);
  __syncthreads();
  float sums[4] = {};
  Multiply(sums, full, memory, xs, a.parts);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp >= kOut / 16) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t out = channel + 16 * warp + lane / 4 + i / 2 * 8, token = lane % 4 * 2 + i % 2;
    if (token >= live || out >= a.out) continue;
    const int64_t at = out + token * a.y_stride + blockIdx.y * a.y_head_stride;
    if (a.f32) {
      static_cast<float*>(a.y)[at] = sums[i];
    } else {
      static_cast<__nv_bfloat16*>(a.y)[at] = __float2bfloat16_rn(sums[i]);
    }
  }
}

}  // namespace
}  // namespace bf16_held

bool Bf16HeldFits(const Bf16ProductParams& p) {
  using namespace bf16_held;
  const int64_t parts = p.in / kPartChannels;
  if (p.ids != nullptr || p.counts != nullptr || p.silu || p.tokens > kTokens ||
      p.in % kPartChannels != 0 || parts > kMostParts) {
    return false;
  }
  const int64_t at_once = std::min(kMostBlocks, kShared / (SharedBytes(parts) + 1024));
  return CeilDivide(p.out, kOut) * p.count <= at_once * Multiprocessors();
}

void LaunchBf16Held(const Bf16ProductParams& p, cudaStream_t stream) {
  using namespace bf16_held;
  const Args args = {.x = reinterpret_cast<const __nv_bfloat16*>(p.x),
                     .y = p.y,
                     .live = p.live,
                     .x_stride = p.x_stride,
                     .x_head_stride = p.x_head_stride,
                     .y_stride = p.y_stride,
                     .y_head_stride = p.y_head_stride,
                     .out = static_cast<int32_t>(p.out),
                     .parts = static_cast<int32_t>(p.in / kPartChannels),
                     .tokens = static_cast<int32_t>(p.tokens),
                     .f32 = p.f32,
                     .wait_first = p.wait_first};
  const auto u64 = [](int64_t x) { return static_cast<uint64_t>(x); };
  const CUtensorMap weight_map = MakeTensorMap({.data = p.w,
                                                .sizes = {u64(p.in), u64(p.count * p.out)},
                                                .strides = {u64(p.in) * 2},
                                                .box = {kBf16Chunk, kOut},
                                                .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
  const dim3 blocks(static_cast<unsigned>(CeilDivide(p.out, kOut)), static_cast<unsigned>(p.count));
  Gpu::OfThread().AllowSharedMemory(Kernel, kShared - 1024);
  Gpu::OfThread().Check(LaunchEarly(Kernel, blocks, kThreads,
                                    static_cast<size_t>(SharedBytes(args.parts)), stream,
                                    weight_map, args));
}

}  // namespace fathom
