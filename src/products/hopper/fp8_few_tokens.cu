// FP8 block-scaled products of at most eight tokens on Hopper.
//   formula:       as fp8_gemm_kernel.cuh; x's scales and codes as quantize_tokens.cu
//   data mapping:  a block per 64 channels of W, the tensor core's operand of 64 tile rows; x is
//                  its operand of 8. One warp streams W through a ring by TMA, eight quantise x
//                  into shared memory meanwhile, and four of these then multiply run by run
//                  (Fp8Chains: blocks of a cluster have a chain of the runs each)
//   bytes, FLOPs:  W once; x once per block, from the L2; 2 FLOPs a weight and token
//   accumulator:   the tensor core's within a run, fp32 registers across runs, in order
//   builds on:     the DeepSeek-V3 report, section 3.3, for the scaling; a warp of its own that
//                  loads, as CUTLASS's warp-specialised kernels for Hopper
//   expected time: docs/design/fp8-gemm.md, "Few tokens"
#include <algorithm>

#include "base/check.h"
#include "cuda/fence.h"
#include "cuda/gpu.h"
#include "cuda/launch_clusters.cuh"
#include "cuda/launch_early.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tma.h"
#include "products/cuda/few_pairs.cuh"
#include "products/hopper/fp8_few_tokens.h"
#include "products/hopper/fp8_few_tokens_quantize.cuh"
#include "products/hopper/fp8_few_tokens_sum.cuh"

namespace fathom {
namespace fp8_few_tokens {

// What a launch multiplies with: experts' matrices, or one, whose runs a cluster may share.
enum class Matrix { kOfExperts, kOne, kInChains };

template <class X, class Y, bool kSilu, Matrix kMatrix, int kPieces>
__global__ void __launch_bounds__(kThreads, kMatrix == Matrix::kOfExperts ? kBlocksAtATime
                                                                          : kDenseBlocksAtATime)
    Kernel(const __grid_constant__ CUtensorMap weight_map, const __grid_constant__ Args a) {
  constexpr bool kChains = kMatrix == Matrix::kInChains;
  constexpr bool kExperts = kMatrix == Matrix::kOfExperts;
  extern __shared__ __align__(1024) uint8_t dynamic[];
  const Memory memory(dynamic, a, kChains ? a.chain_runs : a.runs, kChains ? a.chains - 1 : 0);
  Shared& shared = *memory.shared;
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) PrefetchTensorMap(&weight_map);
  if (threadIdx.x < a.stages) {
    shared.full[threadIdx.x].Init(1);
    shared.empty[threadIdx.x].Init(kMultipliers / 32);
    FenceMbarrierInit();
  }
  // Which weights a dense product needs, and of experts those that all tokens share, is known
  // before the kernels before have ended. Groups of pairs begin with these.
  const auto group = static_cast<int32_t>(blockIdx.y);
  const bool chosen = kExperts && group >= a.shared;
  if (chosen && !a.early) WaitForPriorKernels();
  const FewTokens pairs = {a.ids, a.live, a.tokens, a.topk, a.matrices - a.shared};
  if (chosen && warp == 0) {
    FindPairs<MostTokens(kPieces)>(shared.pairs, pairs, group - a.shared);
  }
  __syncthreads();
  if (chosen && shared.pairs.count == 0) return WaitForPriorKernels();

  const int32_t matrix = chosen     ? shared.pairs.matrix
                         : kExperts ? a.matrices - a.shared + group
                                    : 0;
  if constexpr (kChains) ClusterArrive();
  const auto block = static_cast<int32_t>(blockIdx.x);
  const Fp8Runs runs =
      kChains ? Fp8RunsOfChain(a.runs, block % a.chains, a.chains) : Fp8Runs{0, a.runs};
  const int32_t tile = kChains ? block / a.chains : block, part = tile / a.part_tiles;
  constexpr int32_t kTile = kSilu ? kChannels / 2 : kChannels;
  const int32_t channel = (tile - part * a.part_tiles) * kTile;  // of the part
  const int32_t weight_channel = (matrix * a.parts + part) * a.part_out + channel;
  if (warp == kQuantizers / 32) {
    LoadWeights<kSilu>(memory, a, runs, &weight_map, weight_channel);
    return;
  }
  // Read before x is, and stored after it.
  static_assert(fp8_gemm::kMostRuns <= kQuantizers);
  const bool scales = threadIdx.x < runs.count;
  const float* channel_scales =
      a.weight_scales +
      static_cast<int64_t>((matrix * a.parts + part) * a.scale_groups + channel / kRun) * a.runs +
      runs.first;
  float scale[2];
  scale[0] = scales ? __ldg(channel_scales + threadIdx.x) : 0;
  if (kSilu) scale[1] = scales ? __ldg(channel_scales + a.scale_groups * a.runs + threadIdx.x) : 0;
  const bool held = !kExperts && HoldsAll(a, runs.count);
  if (held && threadIdx.x < kMultipliers) AwaitWeights(memory, runs.count);
  WaitForPriorKernels();
  AllowNextKernel();  // after the wait: see Fp8FewTokensParams::early
  if (kExperts && !chosen) {
    if (warp == 0) FindPairsOfAll(shared.pairs, pairs, a.topk - a.shared + group);
    NamedBarrierSync(1, kQuantizers);
  }
  const int32_t tokens = kExperts ? shared.pairs.count : min(*a.live, a.tokens);
  // It does not wait for `live`.
  Quantizer<X, kPieces, kExperts>(memory, a, runs, kExperts ? shared.pairs.count : a.tokens).Run();
  if (scales) {
    memory.weight_scales[threadIdx.x] = scale[0];
    if (kSilu) memory.weight_scales[runs.count + threadIdx.x] = scale[1];
  }
  FenceAsyncShared();
  NamedBarrierSync(1, kQuantizers);
  if (threadIdx.x >= kMultipliers) return;
  Sums sums = {};
  const float* const scales_of_warp = memory.weight_scales + (kSilu && warp >= 2 ? runs.count : 0);
  if (held) {
    MultiplyHeld<kPieces>(sums, memory, runs.count, scales_of_warp);
  } else {
    Multiply<kPieces>(sums, memory, a, runs.count, scales_of_warp);
  }
  if constexpr (kChains) {
    if (!AddChains(sums, memory, a)) return;
  }

  if constexpr (kSilu) {  // the last two warps have up
    if (warp >= 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        shared.up[sums.Channel(i) - kChannels / 2][sums.Token(i)] = sums.d[i];
      }
    }
    NamedBarrierSync(1, kMultipliers);
    if (warp >= 2) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums.d[i] = fp8_gemm::SiluTimes(sums.d[i], shared.up[sums.Channel(i)][sums.Token(i)]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t c = channel + sums.Channel(i), r = sums.Token(i);
    if (r >= tokens || c >= a.part_out) continue;
    const int64_t place = kExperts ? shared.pairs.pair[r] : r;
    const int64_t at = place * a.y_stride + (kSilu ? 0 : part * a.part_out) + c;
    if constexpr (std::is_same_v<Y, float>) {
      static_cast<float*>(a.y)[at] = sums.d[i];
    } else {
      static_cast<__nv_bfloat16*>(a.y)[at] = __float2bfloat16_rn(sums.d[i]);
    }
  }
}

// Stages of the ring: what is left of the shared memory of as many blocks as fill multiprocessors
// best; of experts three at least, so that a block finds room where one of the kernel before has
// ended.
int64_t Stages(const Args& a, int64_t blocks) {
  const auto turns = [&](int64_t at_a_time) {
    return CeilDivide(blocks, at_a_time * Multiprocessors());
  };
  const int64_t most = std::min<int64_t>(a.chain_runs, kMostStages),
                least = std::min<int64_t>(most, kLeastStages);
  int64_t at_a_time = turns(4) * 4 <= turns(3) * 3 ? 4 : 3;
  if (a.ids == nullptr) at_a_time = std::min<int64_t>(kDenseBlocksAtATime, turns(1));
  for (;; --at_a_time) {
    const int64_t left = kSharedBytes / at_a_time - 1024 - static_cast<int64_t>(SharedBytes(a, 0));
    const int64_t stages = std::min<int64_t>(most, left / kStageBytes);
    // Of at most four tokens runs go through the ring kAtOnce at a time.
    const int64_t step = a.pieces == kTokens || stages == most ? 1 : kAtOnce;
    if (stages >= least) return stages / step * step;
    CHECK(at_a_time > 1, "fp8_few_tokens: {} runs", a.runs);
  }
}

template <class X, class Y, bool kSilu, Matrix kMatrix, int kPieces>
void Launch(const Fp8FewTokensParams& p, Args args, cudaStream_t stream) {
  constexpr bool kExperts = kMatrix == Matrix::kOfExperts;
  constexpr uint32_t kBoxChannels = kSilu ? kChannels / 2 : kChannels;
  const Fp8Weights& w = p.w;
  args.part_tiles = static_cast<int32_t>(CeilDivide(w.part_out, kBoxChannels));
  const CUtensorMap weight_map =
      MakeTensorMap({.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                     .data = w.codes,
                     .sizes = {static_cast<uint64_t>(w.in),
                               static_cast<uint64_t>(w.count * w.parts * w.part_out)},
                     .strides = {static_cast<uint64_t>(w.in)},
                     .box = {kRun, kBoxChannels},
                     .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
  const int64_t tiles = (kSilu ? 1 : w.parts) * args.part_tiles;
  const int64_t pairs = kExperts ? p.tokens * p.topk : 1,
                groups = kExperts ? p.shared + p.tokens * (p.topk - p.shared) : 1;
  args.pieces = kPieces;
  args.chains = kExperts ? 1 : Fp8ChainsOf(w);
  args.chain_runs = static_cast<int32_t>(CeilDivide(args.runs, args.chains));
  args.stages = static_cast<int32_t>(Stages(args, tiles * pairs * args.chains));
  const size_t bytes = SharedBytes(args, args.stages);
  const auto kernel = Kernel<X, Y, kSilu, kMatrix, kPieces>;
  Gpu::OfThread().AllowSharedMemory(kernel, kSharedBytes);
  if constexpr (kMatrix == Matrix::kInChains) {
    const ClusterGrid grid = {tiles, args.chains, kThreads, bytes};
    LaunchClusters(kernel, grid, stream, weight_map, args);
  } else {
    Gpu::OfThread().Check(
        LaunchEarly(kernel, dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(groups)),
                    kThreads, bytes, stream, weight_map, args));
  }
}

template <class X, class Y, bool kSilu, Matrix kMatrix>
void Launch(const Fp8FewTokensParams& p, const Args& args, cudaStream_t stream) {
  const int32_t pieces = PiecesOf(p.tokens);
  if (pieces == 1) return Launch<X, Y, kSilu, kMatrix, 1>(p, args, stream);
  if (pieces == 5) return Launch<X, Y, kSilu, kMatrix, 5>(p, args, stream);
  if constexpr (kMatrix == Matrix::kOfExperts) {
    return Launch<X, Y, kSilu, kMatrix, kTokens>(p, args, stream);
  }
}

template <class X, class Y>
void LaunchDense(const Fp8FewTokensParams& p, const Args& args, cudaStream_t stream) {
  return Fp8ChainsOf(p.w) > 1 ? Launch<X, Y, false, Matrix::kInChains>(p, args, stream)
                              : Launch<X, Y, false, Matrix::kOne>(p, args, stream);
}

int32_t TokenShare(const Fp8FewTokensParams& p) {
  constexpr int32_t kOne = 1 << kTokenShareBits;
  return p.x_of_pairs ? kOne : kOne / static_cast<int32_t>(p.topk) + 1;
}

}  // namespace fp8_few_tokens

bool Fp8FewTokensHolds(const Fp8Weights& w) {
  using namespace fp8_few_tokens;
  const int64_t runs = CeilDivide(w.in, kRun);
  return Fp8ChainsOf(w) == 1 && runs <= kMostStages && runs % kHeldAtOnce == 0 &&
         w.parts * CeilDivide(w.part_out, kChannels) <= Multiprocessors();
}

void LaunchFp8FewTokens(const Fp8FewTokensParams& p, cudaStream_t stream) {
  using namespace fp8_few_tokens;
  const Fp8Weights& w = p.w;
  CHECK(p.tokens <= kFp8FewTokens && p.tokens * p.topk <= kFp8MostPairs,
        "fp8_few_tokens: {} x {} tokens", p.tokens, p.topk);
  CHECK(w.in % 16 == 0 && w.in <= kRun * fp8_gemm::kMostRuns && w.part_out % 16 == 0,
        "fp8_few_tokens: {} to {} channels", w.in, w.part_out);
  CHECK((p.output == Fp8FewTokensOutput::kSilu) <= (w.parts == 2), "fp8_few_tokens: {} parts",
        w.parts);
  CHECK(p.ids != nullptr || p.tokens <= kFp8FewDenseTokens, "fp8_few_tokens: {} tokens", p.tokens);
  CHECK(!p.x_f32 || p.output == Fp8FewTokensOutput::kBF16, "fp8_few_tokens: F32 to F32");
  CHECK(p.ids == nullptr || p.x_f32 != (p.output == Fp8FewTokensOutput::kSilu),
        "fp8_few_tokens: experts' products are gate and up of BF16, or down of F32");
  if (p.tokens == 0) return;
  const Args args = {.x = p.x,
                     .live = p.live,
                     .ids = p.ids,
                     .weight_scales = w.scales,
                     .y = p.y,
                     .x_stride = p.x_stride,
                     .y_stride = p.y_stride,
                     .tokens = static_cast<int32_t>(p.tokens),
                     .topk = static_cast<int32_t>(p.topk),
                     .shared = static_cast<int32_t>(p.shared),
                     .channels = static_cast<int32_t>(w.in),
                     .runs = static_cast<int32_t>(CeilDivide(w.in, kRun)),
                     .matrices = static_cast<int32_t>(w.count),
                     .parts = static_cast<int32_t>(w.parts),
                     .part_out = static_cast<int32_t>(w.part_out),
                     .part_tiles = 0,
                     .scale_groups = static_cast<int32_t>(CeilDivide(w.part_out, kRun)),
                     .stages = 0,
                     .pieces = 0,
                     .chains = 1,
                     .chain_runs = 0,
                     .token_share = TokenShare(p),
                     .early = p.early,
                     .ue8m0 = p.scale_ue8m0};
  using Bf16 = __nv_bfloat16;
  const bool silu = p.output == Fp8FewTokensOutput::kSilu;
  if (p.ids != nullptr) {
    return silu ? Launch<Bf16, float, true, Matrix::kOfExperts>(p, args, stream)
                : Launch<float, Bf16, false, Matrix::kOfExperts>(p, args, stream);
  }
  if (silu) return Launch<Bf16, float, true, Matrix::kOne>(p, args, stream);
  if (p.x_f32) return LaunchDense<float, Bf16>(p, args, stream);
  return p.output == Fp8FewTokensOutput::kF32 ? LaunchDense<Bf16, float>(p, args, stream)
                                              : LaunchDense<Bf16, Bf16>(p, args, stream);
}

}  // namespace fathom
