// BF16 products of few tokens on Hopper, with weights as the operand of 16 tile rows.
//   formula:       y[t] = x[t] W^T; or silu(gate) * up of the two halves of W
//   data mapping:  blocks walk tiles of 16 outputs a warp, all channels; a warp feeds a ring of
//                  stages (128 channels) with W by TMA, across tiles, and another with x
//   bytes, FLOPs:  weights once; 2 FLOP a weight and token
//   accumulator:   fp32 in the tensor core, in ascending order: the sums of bf16_gemm_kernel.cuh
//   builds on:     warps of their own that load, as CUTLASS's warp-specialised kernels for Hopper
//   expected time: docs/design/bf16-gemm.md
#include <algorithm>

#include "base/check.h"
#include "cuda/fence.h"
#include "cuda/gpu.h"
#include "cuda/launch_early.cuh"
#include "cuda/mma.cuh"
#include "cuda/tensor_map.h"
#include "products/cuda/silu_mul.cuh"
#include "products/hopper/bf16_few_tokens_load.cuh"
#include "products/hopper/gemm_tiles.cuh"

namespace fathom {
namespace bf16_few_tokens {
namespace {

// What a warp multiplies of a chunk: 16 outputs, all tokens.
struct Fragments {
  uint32_t w[4][4], x[2][4];
};
__device__ __forceinline__ void Add(float (&sums)[4], const Fragments& f, int k) {
  kernels::Multiply(sums, f.w[k], f.x[k / 2][k % 2 * 2], f.x[k / 2][k % 2 * 2 + 1]);
}

template <class T>
__device__ void StoreTile(const Shared& shared, const Args& args, const Place& place,
                          int32_t tokens, const float (&sums)[4], int warp) {
  const Bf16ProductParams& p = args.p;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < (T::kSilu ? 2 : 4); ++i) {
    const int32_t out = place.channel + warp * (T::kSilu ? 8 : 16) + lane / 4 + i / 2 * 8;
    const int32_t token = lane % 4 * 2 + i % 2;
    if (token >= tokens || out >= args.channels) continue;
    const int64_t at =
        out + (p.ids == nullptr ? token * p.y_stride + place.matrix * p.y_head_stride
                                : shared.experts.pairs[place.group][token] * p.y_stride);
    const float y = T::kSilu ? kernels::SiluMul(sums[i], sums[2 + i]) : sums[i];
    if (p.f32) {
      static_cast<float*>(p.y)[at] = y;
    } else {
      static_cast<__nv_bfloat16*>(p.y)[at] = __float2bfloat16_rn(y);
    }
  }
}

template <class T>
__device__ void MultiplyTiles(Shared& shared, const uint8_t* weights, const uint8_t* xs,
                              const Args& args, int32_t items, int warp) {
  const int lane = threadIdx.x % 32;
  const int32_t live = args.p.ids == nullptr ? LiveTokens(args.p) : 0;
  // Where this lane reads its tile rows; the next 16 channels are two 16-byte places of the
  // swizzle on.
  const int turn = lane % 8;
  const int tile_row = T::kSilu ? lane % 16 / 8 * (T::kWeightChannels / 2) + warp * 8 + lane % 8
                                : warp * 16 + lane % 16;
  const uint32_t weight_from =
      SharedAddress(weights) + tile_row * kChunkBytes + (lane / 16 ^ turn) * 16;
  const uint32_t x_from = SharedAddress(xs) + lane % 8 * kChunkBytes + (lane / 8 ^ turn) * 16;
  Ring ring{.buffers = args.stages};
  const auto read = [&](Fragments& to, int chunk) {  // of the ring's stage
    const int32_t place = ring.index * kStageChunks + chunk;
    const uint32_t w = weight_from + place * T::kWeightBytes, x = x_from + place * kXBytes;
#pragma unroll
    for (int k = 0; k < 4; ++k) kernels::LoadMatrices(to.w[k], w ^ k * 32);
#pragma unroll
    for (int k = 0; k < 2; ++k) kernels::LoadMatrices(to.x[k], x ^ k * 64);
  };
  const auto release = [&](int32_t stage) {
    __syncwarp();
    if (lane == 0) shared.empty[stage].Arrive();
  };
  for (int32_t item = blockIdx.x; item < items; item += gridDim.x) {
    float sums[4] = {};
    // A product waits for the one before it: what comes next is read between them.
    Fragments now, next;
    shared.full[ring.index].Wait(ring.parity);
    read(now, 0);
#pragma unroll 1
    for (int32_t left = args.chunks; left > 0; left -= kStageChunks) {
      Add(sums, now, 0);
      if (left > 1) read(next, 1);
      Add(sums, now, 1);
      Add(sums, now, 2);
      Add(sums, now, 3);
      const int32_t held = ring.index;
      ring.Advance();
      if (left == 1) {
        release(held);
        break;
      }
      Mbarrier& full = shared.full[ring.index];
      Add(sums, next, 0);
      const bool there = full.Test(ring.parity);
      Add(sums, next, 1);
      if (left > 2) {
        if (!there) full.Wait(ring.parity);
        read(now, 0);
      }
      Add(sums, next, 2);
      release(held);
      Add(sums, next, 3);
    }
    const Place place = PlaceOf<T>(shared, args, item);
    StoreTile<T>(shared, args, place, args.p.ids == nullptr ? live : place.tokens, sums, warp);
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 2)
    Kernel(const __grid_constant__ CUtensorMap weight_map, const __grid_constant__ Args args) {
  extern __shared__ __align__(1024) uint8_t memory[];
  uint8_t* xs = memory + args.stages * kStageChunks * T::kWeightBytes;
  Shared& shared = *reinterpret_cast<Shared*>(memory + args.stages * T::kStageBytes);
  const int warp = Uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  const Bf16ProductParams& p = args.p;
  const bool pairs = p.ids != nullptr;
  if (warp == T::kWarps) {
    if (lane == 0) PrefetchTensorMap(&weight_map);
    for (int stage = lane; stage < args.stages; stage += 32) {
      shared.full[stage].Init(1 + 32);  // the lane that asks for weights, those that copy tokens
      shared.empty[stage].Init(T::kWarps);
    }
    FenceMbarrierInit();
  }
  WeightLoader<T> loader(shared, memory, args, weight_map);
  if (warp == T::kWarps && p.shared > 0) {
    __syncwarp();  // other lanes made the barriers
    if (lane == 0) loader.LoadEarly();
  }
  if (pairs) {
    if (!p.ids_early) WaitForPriorKernels();
    AllowNextKernel();  // after the wait: see ids_early
    if (warp == 0) FindExperts(shared.experts, p);
  }
  __syncthreads();
  const int32_t items =
      (pairs ? shared.experts.count : static_cast<int32_t>(p.count)) * args.across;
  const bool x_is_there = pairs && !p.ids_early;
  if (warp == T::kWarps) {
    if (lane == 0) loader.Load(items);
  } else if (warp > T::kWarps) {
    if (!x_is_there) WaitForPriorKernels();
    LoadTokens<T>(shared, xs, args, items);
  } else {
    if (!pairs && !p.wait_first) AllowNextKernel();
    if (!x_is_there) WaitForPriorKernels();
    if (!pairs && p.wait_first) AllowNextKernel();
    MultiplyTiles<T>(shared, memory, xs, args, items, warp);
  }
}

template <int kWarps, bool kSilu>
void Launch(const Bf16ProductParams& p, cudaStream_t stream) {
  using T = Tile<kWarps, kSilu>;
  constexpr int64_t kBlocks = 2, kShared = 228 * 1024 / kBlocks - 1024;  // of a multiprocessor
  const int64_t channels = kSilu ? p.out / 2 : p.out;
  const int64_t across = CeilDivide(channels, T::kOut), chunks = CeilDivide(p.in, kBf16Chunk);
  const int64_t items =
      across * (p.ids != nullptr ? std::min(p.count, p.tokens * p.topk) : p.count);
  const int64_t blocks = std::min(items, kBlocks * Multiprocessors());
  const auto more =
      static_cast<int64_t>(p.ids != nullptr ? sizeof(Shared) : offsetof(Shared, experts));
  const int64_t stages = std::min<int64_t>(
      {(kShared - more) / T::kStageBytes,
       CeilDivide(chunks, kStageChunks) * CeilDivide(items, blocks), kMostStages});
  const Args args = {.p = p,
                     .channels = static_cast<int32_t>(channels),
                     .chunks = static_cast<int32_t>(chunks),
                     .across = static_cast<int32_t>(across),
                     .stages = static_cast<int32_t>(stages)};
  constexpr uint32_t kBoxChannels = kSilu ? T::kOut : T::kWeightChannels;
  const auto u64 = [](int64_t x) { return static_cast<uint64_t>(x); };
  const CUtensorMap weight_map = MakeTensorMap({.data = p.w,
                                                .sizes = {u64(p.in), u64(p.count * p.out)},
                                                .strides = {u64(p.in) * 2},
                                                .box = {kBf16Chunk, kBoxChannels},
                                                .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
  Gpu::OfThread().AllowSharedMemory(Kernel<T>, kShared);
  Gpu::OfThread().Check(LaunchEarly(Kernel<T>, dim3(static_cast<unsigned>(blocks)), T::kThreads,
                                    static_cast<size_t>(stages * T::kStageBytes + more), stream,
                                    weight_map, args));
}

}  // namespace
}  // namespace bf16_few_tokens

void LaunchBf16FewTokens(const Bf16ProductParams& p, cudaStream_t stream) {
  using namespace bf16_few_tokens;
  CHECK(p.shared == 0 ||
            (p.ids != nullptr && p.shared <= std::min<int64_t>({kMostShared, p.topk, p.count})),
        "bf16_few_tokens: {} shared of {} matrices, {} a token", p.shared, p.count, p.topk);
  if (p.tokens == 0) return;
  // Small matrices are spread over more multiprocessors.
  const int64_t channels =
      p.out * (p.ids != nullptr ? std::min(p.count, p.tokens * p.topk) : p.count);
  if (channels <= 64 * Multiprocessors()) {
    if (p.silu) return Launch<2, true>(p, stream);
    return Launch<2, false>(p, stream);
  }
  if (p.silu) return Launch<4, true>(p, stream);
  Launch<4, false>(p, stream);
}

}  // namespace fathom
