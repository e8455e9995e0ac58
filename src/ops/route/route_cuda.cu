// Routing on CUDA: the router's product and the choice of experts, of up to kFewTokens tokens in
// one launch.
//   formula:       as ops.h says for RouteArgs
//   data mapping:  product of few tokens: a warp per chunk of channels; of many: tiles through
//                  shared memory; choice: a warp per token
//   bytes, FLOPs:  the gate once per block's tokens, x once per block's experts, from L2; 2 FLOP a
//                  weight and token
//   accumulator:   fp32 on tensor cores, 128 channels at a time: router_product_cuda.cuh
//   builds on:     sums of 128 channels on tensor cores, then fp32: the DeepSeek-V3 report, section
//                  3.3; an fp32 weight as three of BF16 (Henry, Tang, Heinecke, 2019)
//   expected time: docs/design/cuda-backend.md
#include "ops/cuda_ops.h"
#include "ops/route/router_product_cuda.cuh"

namespace fathom {
namespace kernels {

constexpr int kUsualExperts = 256, kMaxExperts = 1024;
constexpr int kFewTokens = 16, kSomeTokens = 128;
constexpr int kNormedTokens = 2;    // which every block norms; with 8 V2-Lite's step is 3 % longer
constexpr int kSomeHidden = 12288;  // the sums of its chunks for 32 tokens fit 48 KiB
constexpr int kMaxWarps = 16;       // of a block that multiplies few tokens
constexpr int kChoosers = 4;        // tokens of a block that only chooses

// Of few tokens, the complements of the bits of the parts' sums; 0: not there yet, as all are
// between launches. Those of a GPU are of one stream (CudaDevice: one at a time). No sum is the NaN
// of all ones: arithmetic's is 0x7fffffff.
__device__ uint32_t posted[kFewTokens * kParts * kUsualExperts];

__device__ inline uint32_t* Posted(int t, int part, int e) {
  return posted + (t * kParts + part) * kUsualExperts + e;
}

// The logit of parts that load(part) gives.
template <class Load>
__device__ inline float AddParts(const Load& load) {
  float parts[kParts], sum = 0;
#pragma unroll
  for (int i = 0; i < kParts; ++i) parts[i] = load(i);
#pragma unroll
  for (int i = 0; i < kParts; ++i) sum += parts[i];
  return sum;
}

// Waits for a logit's parts, and makes their places zero again.
__device__ inline float TakePosted(int t, int e) {
  uint32_t bits[kParts] = {};
  for (bool waits = true; waits;) {
    waits = false;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      if (bits[i] != 0) continue;
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(bits[i]) : "l"(Posted(t, i, e)));
      waits |= bits[i] == 0;
    }
  }
  return AddParts([&](int i) {
    *Posted(t, i, e) = 0;
    return __uint_as_float(~bits[i]);
  });
}

// A block that chooses for one token what the others post. Once for nothing, while it waits, so
// that the instructions are there. With a norm it writes what that makes; the residual when all
// others have read it, which they have when their sums are there.
template <int kEach, bool kNorms>
__device__ inline void ChoosePosted(const Router& a, int t, uint32_t* shared) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  auto* logits = reinterpret_cast<float*>(shared);
  float biases[kEach], scores[kEach] = {};
  LoadBiases(a, biases);
  AddedToken added;
  if constexpr (kNorms) added.LoadWeight(a.norm);
#pragma unroll 1
  for (int time = 0; time < 2; ++time) {
    if (time == 1) {
      WaitForPriorKernels();
      AllowNextKernel();
      if (t >= min(*a.live, a.tokens)) return;
      if constexpr (kNorms) {
        added.Load(a.norm, t);
        added.Norm(a.norm, {t, nullptr, a.norm.out[t], a.norm.quantized});
      }
      for (int e = threadIdx.x; e < a.experts; e += blockDim.x) logits[e] = TakePosted(t, e);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int e = i * kWarp + lane;
        scores[i] = e < a.experts ? logits[e] : -INFINITY;
      }
      if constexpr (kNorms) added.StoreSum(a.norm, t);
    }
    if (warp == 0) ChooseExperts(a, t, biases, scores, shared + a.experts, time == 1);
  }
}

// Who chooses must not wait for who multiplies to end.
template <class T, int kEach>
constexpr int kBlocksAtOnce = kEach > 0 && sizeof(T) == 2 ? 2 : 1;

// The product of kTokens tokens, 8 * kColumns experts and a part of the channels: each warp has a
// chunk, or every blockDim / 32'th. With kEach > 0 sums are posted to the last blocks, which
// choose.
template <class T, int kTokens, int kColumns, bool kAligned, int kEach = 0, bool kNorms = false>
__global__ void __launch_bounds__(kNorms ? kNormThreads : kMaxWarps* kWarp, kBlocksAtOnce<T, kEach>)
    RouterChunks(Router a) {
  constexpr int kExperts = 8 * kColumns;
  extern __shared__ uint32_t shared[];
  auto* chunk_sums = reinterpret_cast<float(*)[kTokens][kExperts]>(shared);
  if (a.tokens > 1) AllowNextKernel();  // of one token experts that wait here slow it down
  const int tiles = (a.experts + kExperts - 1) / kExperts, block = static_cast<int>(blockIdx.x);
  if constexpr (kEach > 0) {
    const int choice = block - tiles * kParts;
    if (choice >= 0) return ChoosePosted<kEach, kNorms>(a, choice, shared);
  }
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int part = block / tiles, first_expert = block % tiles * kExperts;
  const int first_chunk = part * PartChunks(a);
  const int chunks = min(PartChunks(a), (a.hidden + kChunk - 1) / kChunk - first_chunk);
  // Tokens and experts that are not there are those of the last one; their sums go nowhere.
  Eight<T> gate[kBlocks][kColumns];
  const auto load_gate = [&](int chunk) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const int e = min(first_expert + 8 * n + lane / 4, a.experts - 1);
        const int k = (first_chunk + chunk) * kChunk + b * kBlock + lane % 4 * 8;
        gate[b][n] =
            LoadEight<kAligned>(static_cast<const T*>(a.gate) + int64_t{e} * a.hidden, k, a.hidden);
      }
    }
  };
  if (warp < chunks) load_gate(warp);
  AddedToken added;
  if constexpr (kNorms) added.LoadWeight(a.norm);
  WaitForPriorKernels();
  AllowNextKernel();
  BF16* const normed = reinterpret_cast<BF16*>(chunk_sums + PartChunks(a));  // [tokens, hidden]
  if constexpr (kNorms) {
    for (int t = 0; t < a.tokens; ++t) {
      added.Load(a.norm, t);
      added.Norm(a.norm, {t, nullptr, normed + t * a.hidden, {}});
    }
    __syncthreads();
  }
  const auto x_of = [&](int t) {
    t = min(t, a.tokens - 1);
    return kNorms ? normed + t * a.hidden : a.x[t];
  };
  // The first tokens are loaded before the live count is there: what lies beyond goes nowhere.
  const int first = static_cast<int>(blockIdx.y) * kTokens, live = min(*a.live, a.tokens);
  if (blockIdx.y > 0 && first >= live) return;
  for (int chunk = warp; chunk < chunks; chunk += static_cast<int>(blockDim.x) / kWarp) {
    if (chunk != warp) load_gate(chunk);
#pragma unroll
    for (int of_tile = 0; of_tile < kTokens; of_tile += 16) {
      Eight<BF16> x0[kBlocks], x1[kBlocks] = {};
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int k = (first_chunk + chunk) * kChunk + b * kBlock + lane % 4 * 8;
        const int t = first + of_tile + lane / 4;
        x0[b] = LoadEight<kAligned>(x_of(t), k, a.hidden);
        if (kTokens > 8) x1[b] = LoadEight<kAligned>(x_of(t + 8), k, a.hidden);
      }
      float sums[kColumns][4] = {};
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) MultiplyBlock(x0[b], x1[b], gate[b], sums);
      PutTile(sums, [&](int i, int j, float sum, float next) {
        if (kTokens == 8 && i >= 8) return;
        *reinterpret_cast<float2*>(&chunk_sums[chunk][of_tile + i][j]) = {sum, next};
      });
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTokens * kExperts; i += blockDim.x) {
    const int t = first + i / kExperts, e = first_expert + i % kExperts;
    if (t >= live || e >= a.experts) continue;
    float sum = 0;
#pragma unroll 4
    for (int chunk = 0; chunk < chunks; ++chunk) sum += (&chunk_sums[chunk][0][0])[i];
    if constexpr (kEach > 0) {
      asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(Posted(t, part, e)),
                   "r"(~__float_as_uint(sum)));
    } else {
      a.PartSums(part, t)[e] = sum;
    }
  }
}

template <int kEach>
__global__ void __launch_bounds__(kChoosers* kWarp) Choose(Router a) {
  extern __shared__ uint32_t shared[];
  AllowNextKernel();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float biases[kEach], scores[kEach];
  LoadBiases(a, biases);
  WaitForPriorKernels();
  const int64_t t = int64_t{blockIdx.x} * kChoosers + warp;
  if (t >= min(*a.live, a.tokens)) return;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = i * kWarp + lane;
    scores[i] =
        e < a.experts ? AddParts([&](int part) { return a.PartSums(part, t)[e]; }) : -INFINITY;
  }
  ChooseExperts(a, t, biases, scores, shared + warp * a.ChoiceWords(), true);
}

template <class T, int kTokens, int kColumns, bool kAligned, int kEach = 0, bool kNorms = false>
void LaunchChunks(const Router& a, cudaStream_t stream) {
  const int chunks = static_cast<int>(Blocks(a.hidden, kChunk * kParts));
  size_t sums = sizeof(float) * static_cast<size_t>(chunks * kTokens * 8 * kColumns);
  if (kNorms) sums += sizeof(BF16) * static_cast<size_t>(a.tokens * a.hidden);
  const size_t choice = sizeof(uint32_t) * static_cast<size_t>(a.experts + a.ChoiceWords());
  CHECK(sums <= size_t{48} << 10, "route: tokens of {}", a.hidden);
  const dim3 grid(Blocks(a.experts, 8 * kColumns) * kParts + (kEach > 0 ? a.tokens : 0),
                  Blocks(a.tokens, kTokens));
  LaunchOverlapped(RouterChunks<T, kTokens, kColumns, kAligned, kEach, kNorms>, grid,
                   kNorms ? kNormThreads : std::min(chunks, kMaxWarps) * kWarp,
                   std::max(sums, kEach > 0 ? choice : 0), stream, a);
}

template <class T, int kEach>
void LaunchPosting(const Router& a, cudaStream_t stream) {
  if (a.norm.x.data != nullptr) {
    return LaunchChunks<T, kFewTokens / 2, 1, true, kEach, true>(a, stream);
  }
  return a.tokens <= kFewTokens / 2 ? LaunchChunks<T, kFewTokens / 2, 1, true, kEach>(a, stream)
                                    : LaunchChunks<T, kFewTokens, 1, true, kEach>(a, stream);
}

template <class Tile>
void LaunchTiles(const Router& a, cudaStream_t stream) {
  Gpu::OfThread().AllowSharedMemory(RouterTiles<Tile>, Tile::kBytes);
  const dim3 grid(Blocks(a.experts, Tile::kExperts), Blocks(a.tokens, Tile::kTokens), kParts);
  LaunchOverlapped(RouterTiles<Tile>, grid, Tile::kThreads, Tile::kBytes, stream, a);
}

static void LaunchChoose(const Router& a, cudaStream_t stream) {
  const auto kernel = a.experts <= 2 * kWarp   ? Choose<2>
                      : a.experts <= 8 * kWarp ? Choose<8>
                                               : Choose<kMaxExperts / kWarp>;
  const auto bytes = sizeof(uint32_t) * static_cast<size_t>(kChoosers * a.ChoiceWords());
  LaunchOverlapped(kernel, Blocks(a.tokens, kChoosers), kChoosers * kWarp, bytes, stream, a);
}

// Which kernel: a choice between equal bits.
template <class T>
void Launch(const Router& a, bool vectors, cudaStream_t stream) {
  constexpr bool kNarrow = sizeof(T) == 2;
  if (!vectors) {
    LaunchChunks<T, 16, 1, false>(a, stream);
  } else if (a.experts <= 2 * kWarp && a.tokens <= kFewTokens) {
    return LaunchPosting<T, 2>(a, stream);
  } else if (a.experts <= kUsualExperts && a.tokens <= kFewTokens) {
    return LaunchPosting<T, kUsualExperts / kWarp>(a, stream);
  } else if (a.tokens <= kSomeTokens && a.hidden <= kSomeHidden) {
    LaunchChunks<T, 32, kNarrow ? 2 : 1, true>(a, stream);
  } else {
    LaunchTiles<Tile<T, 64, 64, 2, 2, kNarrow ? 128 : 64, 3>>(a, stream);
  }
  LaunchChoose(a, stream);
}

}  // namespace kernels

size_t RouteCudaWorkspace(const Stream&, const RouteArgs& a) {
  return static_cast<size_t>(kernels::kParts * a.x.dim(0) * a.gate.dim(0)) * sizeof(float);
}

void RouteCuda(OpContext& context, const RouteArgs& a) {
  if (a.x.dim(0) == 0) return;
  using namespace kernels;
  const auto experts = static_cast<int32_t>(a.gate.dim(0));
  CHECK(experts <= kMaxExperts && a.ids.dim(1) <= kWarp, "route: {} of {} experts", a.ids.dim(1),
        experts);
  const bool vectors = a.x.dim(1) % 8 == 0 && a.x.stride(0) % 8 == 0 &&
                       reinterpret_cast<uintptr_t>(a.x.data()) % 16 == 0;
  const bool norms =
      vectors && IsAddedNorm(a.norm) && a.x.dim(0) <= kNormedTokens && experts <= kUsualExperts;
  if (!norms && !a.norm.absent()) LaunchRmsNorm(a.norm, Cuda(context).get());
  const Router router = {
      .x = SlicesOf<const BF16>(a.x),
      .gate = a.gate.data(),
      .bias = Data<float>(a.bias),
      .tokens = static_cast<int32_t>(a.x.dim(0)),
      .hidden = static_cast<int32_t>(a.gate.dim(1)),
      .experts = experts,
      .topk = static_cast<int32_t>(a.ids.dim(1)),
      .n_group = a.n_group,
      .topk_group = a.topk_group,
      .group_size = experts / a.n_group,
      .group_inverse = static_cast<uint32_t>(Blocks(1 << 20, experts / a.n_group)),
      .scoring = a.scoring,
      .selection = a.selection,
      .norm_topk_prob = a.norm_topk_prob,
      .scaling = a.scaling,
      .live = Data<int32_t>(a.live),
      .part_sums = reinterpret_cast<float*>(context.workspace.data()),
      .ids = SlicesOf<int32_t>(a.ids),
      .weights = SlicesOf<float>(a.weights),
      .norm = norms ? AddedNormOf(a.norm) : AddedNorm()};
  const auto launch = a.gate.dtype() == DType::kBF16 ? Launch<BF16> : Launch<float>;
  launch(router, vectors, Cuda(context).get());
  Cuda(context).CheckLaunch("route", a.x);
}

}  // namespace fathom
