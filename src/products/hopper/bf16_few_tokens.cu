// BF16 products of few tokens on Hopper, with weights as the operand of 16 tile rows.
//   formula:       y[t] = x[t] W^T; or silu(gate) * up of the two halves of W
//   data mapping:  blocks walk tiles of 16 outputs a warp, all channels; a warp feeds a ring of
//                  stages (128 channels) with W by TMA, across tiles, and another with x
//   bytes, FLOPs:  weights once; 2 FLOP a weight and token
//   accumulator:   fp32 in the tensor core, in ascending order: the sums of bf16_gemm_kernel.cuh
//   builds on:     warps of their own that load, as CUTLASS's warp-specialised kernels for Hopper
//   expected time: docs/design/bf16-gemm.md
#include <algorithm>

#include "cuda/fence.h"
#include "cuda/gpu.h"
#include "cuda/launch_early.cuh"
#include "cuda/mma.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tma.h"
#include "products/cuda/few_pairs.cuh"
#include "products/cuda/silu_mul.cuh"
#include "products/hopper/bf16_few_tokens.h"
#include "products/hopper/gemm_tiles.cuh"

namespace fathom {
namespace bf16_few_tokens {
namespace {

constexpr int kChunkBytes = 2 * kBf16Chunk;  // one tile row of the 128-byte swizzle
constexpr int kStageChunks = 2;
constexpr int kMostStages = 32;
constexpr int kTokens = kBf16FewTokens;  // of x
constexpr int kXBytes = kTokens * kChunkBytes;
constexpr int kMostPairs = FewPairs::kMost;

struct Args {
  Bf16ProductParams p;
  int32_t channels;  // of the output
  int32_t chunks;    // of K
  int32_t across;    // tiles of a matrix
  int32_t stages;
};

template <int kWarps_, bool kSilu_>
struct Tile {
  static constexpr int kWarps = kWarps_;  // that multiply
  static constexpr bool kSilu = kSilu_;
  static constexpr int kThreads = 32 * (kWarps + 2);
  static constexpr int kWeightChannels = 16 * kWarps;
  static constexpr int kOut = kSilu ? kWeightChannels / 2 : kWeightChannels;
  static constexpr int kWeightBytes = kWeightChannels * kChunkBytes;  // of a chunk
  static constexpr int kStageBytes = kStageChunks * (kWeightBytes + kXBytes);
};

// The pairs of each expert that few tokens chose: at most as many as there are tokens.
struct Experts {
  int32_t count;
  int32_t matrix[kMostPairs], counts[kMostPairs];
  int32_t pairs[kMostPairs][kTokens];
};

__device__ __forceinline__ int32_t LiveTokens(const Bf16ProductParams& p) {
  return min(__ldcg(p.live), static_cast<int32_t>(p.tokens));
}

// One warp.
__device__ void FindExperts(Experts& experts, const Bf16ProductParams& p) {
  const int lane = threadIdx.x % 32;
  const auto topk = static_cast<int32_t>(p.topk);
  const int32_t pairs = LiveTokens(p) * topk;
  int32_t count = 0;
  for (int32_t base = 0; base < pairs; base += 32) {
    const int32_t pair = base + lane;
    const int32_t id = pair < pairs ? __ldcg(p.ids + pair) : -1;
    // Experts that are there already, then those that are new among these 32.
    int32_t place = -1;
    for (int32_t i = 0; i < count; ++i) {
      if (experts.matrix[i] == id) place = i;
    }
    const unsigned equal = __match_any_sync(kAllLanes, id);
    const bool first = id >= 0 && place < 0 && (equal & ((1u << lane) - 1)) == 0;
    const unsigned firsts = __ballot_sync(kAllLanes, first);
    if (first) {
      place = count + __popc(firsts & ((1u << lane) - 1));
      experts.matrix[place] = id;
      experts.counts[place] = 0;
    }
    place = __shfl_sync(kAllLanes, place, __ffs(equal) - 1);
    __syncwarp();
    const int32_t before = id >= 0 ? experts.counts[place] : 0;
    __syncwarp();
    if (id >= 0) {
      const int32_t at = before + __popc(equal & ((1u << lane) - 1));
      if (at < kTokens) experts.pairs[place][at] = pair;
      if ((equal >> lane) == 1) experts.counts[place] = min(at + 1, kTokens);
    }
    count += __popc(firsts);
    __syncwarp();
  }
  if (lane == 0) experts.count = count;
}

struct Ring {
  int32_t index = 0, parity = 0, stages;
  __device__ void Advance() {
    if (++index == stages) index = 0, parity ^= 1;
  }
};

struct Shared {
  Mbarrier full[kMostStages], empty[kMostStages];
  Experts experts;
};

// What a tile's stages hold.
struct Place {
  int32_t group, matrix, channel, tokens;  // tokens: or pairs
};
template <class T>
__device__ Place PlaceOf(const Shared& shared, const Args& args, int32_t item) {
  Place place;
  place.group = item / args.across;
  place.channel = (item - place.group * args.across) * T::kOut;
  const bool pairs = args.p.ids != nullptr;
  place.matrix = pairs ? shared.experts.matrix[place.group] : place.group;
  place.tokens = pairs ? shared.experts.counts[place.group] : static_cast<int32_t>(args.p.tokens);
  return place;
}

// Every stage of every tile: one lane. Does not wait for the kernels before.
template <class T>
__device__ void LoadWeights(Shared& shared, uint8_t* memory, const Args& args,
                            const CUtensorMap& map, int32_t items) {
  const uint64_t policy = EvictFirst();
  Ring ring{.stages = args.stages};
  for (int32_t item = blockIdx.x; item < items; item += gridDim.x) {
    const Place place = PlaceOf<T>(shared, args, item);
    const int32_t weight_channel =
        place.matrix * args.channels * (T::kSilu ? 2 : 1) + place.channel;
    for (int32_t chunk = 0; chunk < args.chunks; chunk += kStageChunks, ring.Advance()) {
      Mbarrier& full = shared.full[ring.index];
      uint8_t* to = memory + ring.index * kStageChunks * T::kWeightBytes;
      const int32_t count = min(kStageChunks, args.chunks - chunk);
      shared.empty[ring.index].Wait(ring.parity ^ 1);
      full.ArriveExpect(count * T::kWeightBytes);
      for (int32_t i = 0; i < count; ++i, to += T::kWeightBytes) {
        TmaLoad2(to, &map, full, policy, (chunk + i) * kBf16Chunk, weight_channel);
        if (T::kSilu) {
          TmaLoad2(to + T::kWeightBytes / 2, &map, full, policy, (chunk + i) * kBf16Chunk,
                   weight_channel + args.channels);
        }
      }
    }
  }
}

// The same of x: one warp.
template <class T>
__device__ void LoadTokens(Shared& shared, uint8_t* memory, const Args& args, int32_t items) {
  constexpr int kVectors = kStageChunks * kBf16Chunk / 8;  // of 16 bytes, of a token
  constexpr int kTokensAtATime = 32 / kVectors;
  const Bf16ProductParams& p = args.p;
  const auto* const x = reinterpret_cast<const __nv_bfloat16*>(p.x);
  const int lane = threadIdx.x % 32, vector = lane % kVectors;
  const uint32_t first = SharedAddress(memory) + vector / 8 * kXBytes;
  Ring ring{.stages = args.stages};
  for (int32_t item = blockIdx.x; item < items; item += gridDim.x) {
    const Place place = PlaceOf<T>(shared, args, item);
    const __nv_bfloat16* from[kTokens / kTokensAtATime];
#pragma unroll
    for (int i = 0; i < kTokens / kTokensAtATime; ++i) {
      const int32_t token = i * kTokensAtATime + lane / kVectors;
      int64_t at = 0;
      if (p.ids == nullptr) {
        at = token * p.x_stride + place.matrix * p.x_head_stride;
      } else if (token < place.tokens) {
        const int32_t pair = shared.experts.pairs[place.group][token];
        at = (p.x_of_pairs ? pair : pair / p.topk) * p.x_stride;
      }
      from[i] = x + at;
    }
    for (int32_t chunk = 0; chunk < args.chunks; chunk += kStageChunks, ring.Advance()) {
      const int32_t channel = chunk * kBf16Chunk + vector * 8;
      const uint32_t to = first + ring.index * kStageChunks * kXBytes;
      shared.empty[ring.index].Wait(ring.parity ^ 1);
#pragma unroll
      for (int i = 0; i < kTokens / kTokensAtATime; ++i) {
        const int32_t token = i * kTokensAtATime + lane / kVectors;
        if (token >= place.tokens) break;
        const bool valid = channel < p.in;
        kernels::CopyAsync(to + token * kChunkBytes + (vector % 8 ^ token) * 16,
                           valid ? from[i] + channel : x, valid);
      }
      shared.full[ring.index].ArriveAfterCopies();
    }
  }
  kernels::WaitForCopies<0>();
}

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
  Ring ring{.stages = args.stages};
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
    if (lane == 0) LoadWeights<T>(shared, memory, args, weight_map, items);
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
