// BF16 products of few rows on Hopper, with weights as the operand of 16 rows.
//   formula:       y[t] = x[t] W^T; or silu(gate) * up of the two halves of W
//   data mapping:  blocks walk tiles of 16 outputs a warp; one more warp feeds a ring of stages (64
//                  channels of W and of x) by TMA, across tiles; a warp multiplies its outputs by
//                  all channels
//   bytes, FLOPs:  weights once; 2 FLOP a weight and row
//   accumulator:   fp32 in the tensor core, in ascending order: the sums of bf16_gemm_kernel.cuh
//   expected time: docs/design/bf16_gemm.md
#include <algorithm>

#include "cuda/fence.h"
#include "cuda/launch_early.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tma.h"
#include "ops/linear/bf16_few_rows_cuda.h"
#include "ops/linear/few_pairs_cuda.cuh"
#include "ops/linear/gemm_tiles.cuh"
#include "ops/mma_cuda.cuh"
#include "ops/silu_mul/silu_mul_cuda.cuh"

namespace fathom {
namespace bf16_few_rows {
namespace {

constexpr int kChunk = 64, kChunkBytes = 2 * kChunk;  // one row of the 128-byte swizzle
constexpr int kMostStages = 64;
constexpr int64_t kSharedBytes = 228 * 1024;  // of a multiprocessor
constexpr int kMostPairs = FewPairs::kMost;

struct Args {
  const int32_t* live;
  const int32_t* ids;  // or null
  void* y;
  int64_t y_stride, y_head_stride;
  int32_t tokens, topk;
  int32_t matrices;  // dense: heads; with ids: how many there can be
  int32_t channels;  // of the output
  int32_t chunks;    // of K
  int32_t across;    // tiles of a matrix
  int32_t stages;
  int32_t x_rows;  // of a box
  bool x_of_pairs, ids_early, x_early, wait_first, f32;
};

template <int kWarps_, int kRows_, bool kSilu_>
struct Tile {
  static constexpr int kWarps = kWarps_;  // that multiply
  static constexpr int kRows = kRows_;    // of x: 8 or 16
  static constexpr bool kSilu = kSilu_;
  static constexpr int kThreads = 32 * (kWarps + 1);
  static constexpr int kWeightRows = 16 * kWarps;
  static constexpr int kOut = kSilu ? kWeightRows / 2 : kWeightRows;
  static constexpr int kWeightBytes = kWeightRows * kChunkBytes;  // of a stage
  static constexpr int kXBytes = kRows * kChunkBytes;
};

// The rows of each expert that few tokens chose: at most as many as there are tokens.
struct Experts {
  int32_t count;
  int32_t matrix[kMostPairs], rows[kMostPairs];
  int32_t pairs[kMostPairs][kBf16FewTokens];
};

// One warp.
__device__ void FindExperts(Experts& experts, const Args& args) {
  const int lane = threadIdx.x % 32;
  const int32_t capacity = args.tokens * args.topk;
  int32_t count = 0;
  const int32_t pairs = min(__ldcg(args.live), args.tokens) * args.topk;
  for (int32_t base = 0; base < capacity; base += 32) {
    const int32_t pair = base + lane;
    const int32_t id = pair < capacity && pair < pairs ? __ldcg(args.ids + pair) : -1;
    // Experts that are there already, then those that are new among these 32.
    int32_t place = -1;
    for (int32_t i = 0; i < count; ++i) {
      if (experts.matrix[i] == id) place = i;
    }
    const unsigned equal = __match_any_sync(0xffffffff, id);
    const bool first = id >= 0 && place < 0 && (equal & ((1u << lane) - 1)) == 0;
    const unsigned firsts = __ballot_sync(0xffffffff, first);
    if (first) {
      place = count + __popc(firsts & ((1u << lane) - 1));
      experts.matrix[place] = id;
      experts.rows[place] = 0;
    }
    place = __shfl_sync(0xffffffff, place, __ffs(equal) - 1);
    __syncwarp();
    const int32_t before = id >= 0 ? experts.rows[place] : 0;
    __syncwarp();
    if (id >= 0) {
      const int32_t row = before + __popc(equal & ((1u << lane) - 1));
      if (row < kBf16FewTokens) experts.pairs[place][row] = pair;
      if ((equal >> lane) == 1) experts.rows[place] = min(row + 1, static_cast<int32_t>(kBf16FewTokens));
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

// The loading warp: every stage of every tile. Weights are asked for before the kernels before have
// ended, as far as the stages reach; x is not.
template <class T>
__device__ void Load(Shared& shared, uint8_t* weights, uint8_t* xs, const Args& args,
                     const CUtensorMap& x_map, const CUtensorMap& weight_map, int32_t items) {
  const int lane = threadIdx.x % 32;
  const uint64_t first_policy = EvictFirst(), policy = EvictNormal();
  Ring ring{.stages = args.stages};
  bool first = true;
  for (int32_t item = blockIdx.x; item < items; item += gridDim.x, first = false) {
    const int32_t group = item / args.across;
    const int32_t channel = (item - group * args.across) * T::kOut;
    const bool pairs = args.ids != nullptr;
    const int32_t matrix = pairs ? shared.experts.matrix[group] : group;
    const int32_t loads = pairs ? shared.experts.rows[group] : 1;  // of x, for a stage
    int32_t x_row = 0;
    if (pairs && lane < loads) {
      x_row = shared.experts.pairs[group][lane];
      if (!args.x_of_pairs) x_row /= args.topk;
    }
    const int32_t head = pairs ? 0 : group;
    const uint32_t bytes = T::kWeightBytes + loads * args.x_rows * kChunkBytes;
    const int32_t matrix_rows = T::kSilu ? 2 * args.channels : args.channels;
    const int32_t row = matrix * matrix_rows + channel;
    const auto load_weights = [&](int32_t stage, int32_t chunk) {
      Mbarrier& full = shared.full[stage];
      full.ArriveExpect(bytes);
      uint8_t* to = weights + stage * T::kWeightBytes;
      TmaLoad2(to, &weight_map, full, first_policy, chunk * kChunk, row);
      if (T::kSilu) {
        TmaLoad2(to + T::kWeightBytes / 2, &weight_map, full, first_policy, chunk * kChunk,
                 row + args.channels);
      }
    };
    const int32_t early = first ? min(args.chunks, args.stages) : 0;
    if (first) {
      if (lane == 0) {
        for (int32_t i = 0; i < early; ++i) load_weights(i, i);
      }
      __syncwarp();
      if (pairs ? args.ids_early : !args.x_early) WaitForPriorKernels();
    }
    for (int32_t chunk = 0; chunk < args.chunks; ++chunk, ring.Advance()) {
      if (chunk >= early) {
        shared.empty[ring.index].Wait(ring.parity ^ 1);
        if (lane == 0) load_weights(ring.index, chunk);
        __syncwarp();
      }
      if (lane < loads) {
        TmaLoad3(xs + ring.index * T::kXBytes + lane * kChunkBytes, &x_map, shared.full[ring.index],
                 policy, chunk * kChunk, x_row, head);
      }
    }
  }
}

// What a warp multiplies of a stage: 16 outputs, all rows.
template <class T>
struct Fragments {
  uint32_t w[4][4];
  uint32_t x[T::kRows / 8][2][4];
};

template <class T>
__device__ void Multiply(Shared& shared, const uint8_t* weights, const uint8_t* xs,
                         const Args& args, int32_t items, int warp) {
  const int lane = threadIdx.x % 32;
  const int32_t live = args.ids == nullptr ? min(__ldcg(args.live), args.tokens) : 0;
  const int turn = lane % 8;  // of the swizzle
  const int weight_row = T::kSilu ? lane % 16 / 8 * (T::kWeightRows / 2) + warp * 8 + lane % 8
                                  : warp * 16 + lane % 16;
  const uint32_t weight_from = SharedAddress(weights) + static_cast<uint32_t>(
                                   weight_row * kChunkBytes + (lane / 16 ^ turn) * 16);
  const uint32_t x_from = SharedAddress(xs) +
                          static_cast<uint32_t>(lane % 8 * kChunkBytes + (lane / 8 ^ turn) * 16);
  Ring ring{.stages = args.stages};
  const auto read = [&](Fragments<T>& to) {
    shared.full[ring.index].Wait(ring.parity);
    const uint32_t w = weight_from + ring.index * T::kWeightBytes;
    const uint32_t x = x_from + ring.index * T::kXBytes;
#pragma unroll
    for (int k = 0; k < 4; ++k) kernels::LoadMatrices(to.w[k], w ^ k * 32);
#pragma unroll
    for (int n = 0; n < T::kRows / 8; ++n) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        kernels::LoadMatrices(to.x[n][k], (x ^ k * 64) + n * 8 * kChunkBytes);
      }
    }
  };
  const auto release = [&](int32_t stage) {
    __syncwarp();
    if (lane == 0) shared.empty[stage].Arrive();
  };
  for (int32_t item = blockIdx.x; item < items; item += gridDim.x) {
    float sums[T::kRows / 8][4] = {};
    const auto add = [&](const Fragments<T>& f, int half) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int n = 0; n < T::kRows / 8; ++n) {
          kernels::Multiply(sums[n], f.w[2 * half + k], f.x[n][half][2 * k],
                            f.x[n][half][2 * k + 1]);
        }
      }
    };
    // The next chunk is read while this one's products follow each other.
    Fragments<T> fragments[2];
    read(fragments[0]);
    for (int32_t chunk = 0; chunk < args.chunks; chunk += 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (chunk + i >= args.chunks) break;
        add(fragments[i], 0);
        release(ring.index);
        ring.Advance();
        if (chunk + i + 1 < args.chunks) read(fragments[1 - i]);
        add(fragments[i], 1);
      }
    }
    const int32_t group = item / args.across;
    const int32_t channel = (item - group * args.across) * T::kOut + warp * (T::kSilu ? 8 : 16);
#pragma unroll
    for (int n = 0; n < T::kRows / 8; ++n) {
#pragma unroll
      for (int i = 0; i < (T::kSilu ? 2 : 4); ++i) {
        const int32_t out = channel + lane / 4 + i / 2 * 8;
        const int32_t token = n * 8 + lane % 4 * 2 + i % 2;
        const int32_t rows = args.ids == nullptr ? live : shared.experts.rows[group];
        if (token >= rows || out >= args.channels) continue;
        const int64_t at =
            args.ids == nullptr
                ? token * args.y_stride + group * args.y_head_stride
                : shared.experts.pairs[group][token] * args.y_stride;
        const float y = T::kSilu ? kernels::SiluMul(sums[n][i], sums[n][2 + i]) : sums[n][i];
        if (args.f32) {
          static_cast<float*>(args.y)[at + out] = y;
        } else {
          static_cast<__nv_bfloat16*>(args.y)[at + out] = __float2bfloat16_rn(y);
        }
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads)
    Kernel(const __grid_constant__ CUtensorMap x_map,
           const __grid_constant__ CUtensorMap weight_map, const __grid_constant__ Args args) {
  extern __shared__ __align__(1024) uint8_t memory[];
  uint8_t* xs = memory + args.stages * T::kWeightBytes;
  Shared& shared = *reinterpret_cast<Shared*>(xs + args.stages * T::kXBytes);
  const int warp = Uniform(threadIdx.x / 32);
  const bool pairs = args.ids != nullptr;
  if (warp == T::kWarps) {
    if (ElectLane()) {
      PrefetchTensorMap(&x_map);
      PrefetchTensorMap(&weight_map);
      for (int stage = 0; stage < args.stages; ++stage) {
        shared.full[stage].Init(1);
        shared.empty[stage].Init(T::kWarps);
      }
      FenceMbarrierInit();
    }
    __syncwarp();
  }
  if (pairs) {
    if (!args.ids_early) WaitForPriorKernels();
    AllowNextKernel();  // after the wait: see ids_early
    if (warp == 0) FindExperts(shared.experts, args);
  }
  __syncthreads();
  const int32_t items = (pairs ? shared.experts.count : args.matrices) * args.across;
  if (warp == T::kWarps) {
    if (!pairs && !args.wait_first) AllowNextKernel();
    Load<T>(shared, memory, xs, args, x_map, weight_map, items);
    if (!pairs && args.wait_first) AllowNextKernel();
  } else {
    if (!pairs && !args.wait_first) AllowNextKernel();
    if (!pairs && !args.x_early) WaitForPriorKernels();
    if (!pairs && args.wait_first) AllowNextKernel();
    Multiply<T>(shared, memory, xs, args, items, warp);
  }
  // Who waits for this kernel waits for the last one too.
  if (args.x_early || args.ids_early) WaitForPriorKernels();
}

template <class T>
void Launch(const Bf16ProductParams& p, Bf16FewRowsTile tile, cudaStream_t stream) {
  const bool pairs = p.ids != nullptr;
  const int64_t channels = p.silu ? p.out / 2 : p.out;
  const int64_t across = CeilDivide(channels, T::kOut), chunks = CeilDivide(p.in, kChunk);
  const int64_t matrices = pairs ? std::min(p.count, p.tokens * p.topk) : p.count;
  const int64_t items = matrices * across;
  const int64_t blocks = std::min(items, tile.blocks * Multiprocessors());
  constexpr int64_t kStageBytes = T::kWeightBytes + T::kXBytes;
  const auto more = static_cast<int64_t>(pairs ? sizeof(Shared) : offsetof(Shared, experts));
  const int64_t stages =
      std::min<int64_t>({(kSharedBytes / tile.blocks - 1024 - more) / kStageBytes,
                         chunks * CeilDivide(items, blocks), kMostStages});
  const auto x_rows = static_cast<uint32_t>(pairs ? 1 : p.tokens);
  const Args args = {.live = p.live,
                     .ids = p.ids,
                     .y = p.y,
                     .y_stride = p.y_stride,
                     .y_head_stride = p.y_head_stride,
                     .tokens = static_cast<int32_t>(p.tokens),
                     .topk = static_cast<int32_t>(p.topk),
                     .matrices = static_cast<int32_t>(matrices),
                     .channels = static_cast<int32_t>(channels),
                     .chunks = static_cast<int32_t>(chunks),
                     .across = static_cast<int32_t>(across),
                     .stages = static_cast<int32_t>(stages),
                     .x_rows = static_cast<int32_t>(x_rows),
                     .x_of_pairs = p.x_of_pairs,
                     .ids_early = p.ids_early,
                     .x_early = p.x_early,
                     .wait_first = p.wait_first,
                     .f32 = p.f32};
  const bool heads = !pairs && p.count > 1;
  const auto u64 = [](int64_t x) { return static_cast<uint64_t>(x); };
  const int64_t rows_of_x = pairs && p.x_of_pairs ? p.tokens * p.topk : p.tokens;
  const CUtensorMap x_map = MakeTensorMap(
      {.data = p.x,
       .sizes = {u64(p.in), u64(rows_of_x), u64(heads ? p.count : 1)},
       .strides = {u64(p.x_stride) * 2, u64(heads ? p.x_head_stride : p.x_stride) * 2},
       .box = {kChunk, x_rows, 1},
       .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
  constexpr uint32_t kBoxRows = T::kSilu ? T::kOut : T::kWeightRows;
  const CUtensorMap weight_map = MakeTensorMap({.data = p.w,
                                                .sizes = {u64(p.in), u64(p.count * p.out)},
                                                .strides = {u64(p.in) * 2},
                                                .box = {kChunk, kBoxRows},
                                                .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
  static const cudaError_t configured = cudaFuncSetAttribute(
      Kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024);
  CUDA_CHECK(configured);
  CUDA_CHECK(LaunchEarly(Kernel<T>, dim3(static_cast<unsigned>(blocks)), T::kThreads,
                         static_cast<size_t>(stages * kStageBytes + more), stream, x_map, weight_map, args));
}

template <int kWarps>
void LaunchWarps(const Bf16ProductParams& p, Bf16FewRowsTile tile, cudaStream_t stream) {
  if (p.tokens > 8) {
    if (p.silu) return Launch<Tile<kWarps, 16, true>>(p, tile, stream);
    return Launch<Tile<kWarps, 16, false>>(p, tile, stream);
  }
  if (p.silu) return Launch<Tile<kWarps, 8, true>>(p, tile, stream);
  Launch<Tile<kWarps, 8, false>>(p, tile, stream);
}

}  // namespace
}  // namespace bf16_few_rows

void LaunchBf16FewRows(const Bf16ProductParams& p, cudaStream_t stream, Bf16FewRowsTile tile) {
  using namespace bf16_few_rows;
  if (p.tokens == 0) return;
  if (tile.warps == 0) tile = {.warps = 1, .blocks = 2};
  switch (tile.warps) {
    case 1: return LaunchWarps<1>(p, tile, stream);
    case 2: return LaunchWarps<2>(p, tile, stream);
    default: return LaunchWarps<4>(p, tile, stream);
  }
}

}  // namespace fathom
