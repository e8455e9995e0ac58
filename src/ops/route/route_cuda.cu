// Routing on CUDA: the router's product, then the choice of experts.
//   formula:       as ops.h says for RouteArgs
//   data mapping:  scores: a block per expert for up to 8 tokens, else a warp per expert and 8
//                  tokens; choice: a warp per token
//   bytes, FLOPs:  the gate once per 8 tokens, from L2; 2 FLOP a weight and token
//   accumulator:   fp32: each of 128 places takes four channels in every 512; places 32 apart are
//                  added in order, then 32 in a tree
//   expected time: docs/design/cuda-backend.md
#include "ops/cuda_kernels.cuh"

namespace fathom {
namespace kernels {

constexpr int kMaxExperts = 1024;  // 32 in registers of each lane

constexpr int kTokens = 8, kWarps = 8;  // of a block of scores
constexpr int kParts = 4;               // of an expert's channels
constexpr int kPartChannels = kWarp * 4, kStepChannels = kParts * kPartChannels;
constexpr int kChoosers = 4;  // tokens of a block that chooses

struct Router {
  Rows<const BF16> x;
  const float *gate, *bias;
  int32_t tokens, hidden, experts, topk, n_group, topk_group;
  RouterScoring scoring;
  RouterSelection selection;
  bool norm_topk_prob;
  float scaling;
  const int32_t* live;
  float* logits;  // [tokens, experts]
  Rows<int32_t> ids;
  Rows<float> weights;
};

// Four channels from k on; zeros beyond the row.
template <class T>
__device__ inline float4 LoadFour(const T* row, int k, int width) {
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = k + i < width ? Load(row + k + i) : 0;
  return {x[0], x[1], x[2], x[3]};
}

// Whole rows of 16-byte vectors are read as such; the sums are the same.
template <bool kAligned>
__device__ inline float4 LoadGate(const float* row, int k, int width) {
  if constexpr (kAligned) return *reinterpret_cast<const float4*>(row + k);
  return LoadFour(row, k, width);
}
template <bool kAligned>
__device__ inline float4 LoadX(const BF16* row, int k, int width) {
  if constexpr (kAligned) {
    const uint2 two = *reinterpret_cast<const uint2*>(row + k);
    return {__uint_as_float(two.x << 16), __uint_as_float(two.x & 0xffff0000u),
            __uint_as_float(two.y << 16), __uint_as_float(two.y & 0xffff0000u)};
  }
  return LoadFour(row, k, width);
}

__device__ inline void AddProduct(float& sum, float4 x, float4 g) {
  sum += x.x * g.x;
  sum += x.y * g.y;
  sum += x.z * g.z;
  sum += x.w * g.w;
}

// A block per expert, a warp per part of its channels: few tokens, one of them or up to eight. What
// the gate's first channels are is read before the kernels before have ended.
template <bool kAligned, int kMost>
__global__ void __launch_bounds__(kParts* kWarp) RouterLogitsOfFew(Router a) {
  constexpr int kAhead = 8;  // steps
  __shared__ float parts[kParts][kMost][kWarp];
  AllowNextKernel();
  const int lane = threadIdx.x % kWarp, part = threadIdx.x / kWarp;
  const int first = part * kPartChannels + lane * 4;
  const float* gate = a.gate + int64_t{blockIdx.x} * a.hidden;
  float4 ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int k = first + i * kStepChannels;
    ahead[i] = k < a.hidden ? LoadGate<kAligned>(gate, k, a.hidden) : float4{};
  }
  WaitForPriorKernels();
  const int live = *a.live;  // used in the end alone: nothing waits for it
  float sums[kMost] = {};
  const auto add = [&](int k, float4 g) {
#pragma unroll
    for (int r = 0; r < kMost; ++r) {
      // Rows that are not there are computed, and dropped.
      AddProduct(sums[r], LoadX<kAligned>(a.x[min(r, a.tokens - 1)], k, a.hidden), g);
    }
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (first + i * kStepChannels < a.hidden) add(first + i * kStepChannels, ahead[i]);
  }
#pragma unroll 4
  for (int k = first + kAhead * kStepChannels; k < a.hidden; k += kStepChannels) {
    add(k, LoadGate<kAligned>(gate, k, a.hidden));
  }
#pragma unroll
  for (int r = 0; r < kMost; ++r) parts[part][r][lane] = sums[r];
  __syncthreads();
  for (int r = part; r < min(live, a.tokens); r += kParts) {
    float sum = parts[0][r][lane];
#pragma unroll
    for (int i = 1; i < kParts; ++i) sum += parts[i][r][lane];
    sum = WarpSum(sum);
    if (lane == 0) a.logits[int64_t{r} * a.experts + blockIdx.x] = sum;
  }
}

// A warp per expert: many tokens.
template <bool kAligned>
__global__ void __launch_bounds__(kWarps* kWarp) RouterLogits(Router a) {
  AfterPriorKernels();
  const int lane = threadIdx.x % kWarp;
  const int expert = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int first = static_cast<int>(blockIdx.y) * kTokens, live = min(*a.live, a.tokens);
  if (expert >= a.experts || first >= live) return;
  const float* gate = a.gate + int64_t{expert} * a.hidden;
  float sums[kParts][kTokens] = {};
  for (int step = lane * 4; step < a.hidden; step += kStepChannels) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int k = step + part * kPartChannels;
      if (k >= a.hidden) continue;
      const float4 g = LoadGate<kAligned>(gate, k, a.hidden);
#pragma unroll
      for (int r = 0; r < kTokens; ++r) {
        const int t = min(first + r, live - 1);
        AddProduct(sums[part][r], LoadX<kAligned>(a.x[t], k, a.hidden), g);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kTokens; ++r) {
    float sum = sums[0][r];
#pragma unroll
    for (int part = 1; part < kParts; ++part) sum += sums[part][r];
    sum = WarpSum(sum);
    if (lane == r && first + r < live) a.logits[int64_t{first + r} * a.experts + expert] = sum;
  }
}

// Numbers that are in the order of RanksAbove(): equal for 0 and -0, 1 for NaN. 0: taken.
__device__ inline uint32_t KeyOf(float x) {
  if (isnan(x)) return 1;
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// The index of the greatest of keys[0, n), ties to the lower, in every lane; it becomes taken.
__device__ inline int TakeBest(uint32_t* keys, int n) {
  uint32_t key = 0, best = 0xffffffffu;
  for (int i = threadIdx.x % kWarp; i < n; i += kWarp) {
    if (keys[i] <= key) continue;
    key = keys[i];
    best = i;
  }
  const uint32_t greatest = __reduce_max_sync(kAllLanes, key);
  best = __reduce_min_sync(kAllLanes, key == greatest ? best : 0xffffffffu);
  if (threadIdx.x % kWarp == best % kWarp) keys[best] = 0;  // the lane that reads it
  return static_cast<int>(best);
}

// The best of a group, or the sum of its best two.
__device__ inline float GroupScore(const float* choice, int n, bool top_two) {
  float best = NAN, second = NAN;
  for (int i = 0; i < n; ++i) {
    if (RanksAbove(choice[i], best)) {
      second = best;
      best = choice[i];
    } else if (RanksAbove(choice[i], second)) {
      second = choice[i];
    }
  }
  return top_two && n > 1 ? best + second : best;
}

// Logits of experts lane, 32 + lane, ..., to scores.
template <int kEach>
__device__ inline void Score(const Router& a, float (&scores)[kEach]) {
  if (a.scoring == RouterScoring::kSigmoid) {
#pragma unroll
    for (float& score : scores) score = 1.0f / (1.0f + expf(-score));
    return;
  }
  float max = -INFINITY, sum = 0;
#pragma unroll
  for (const float score : scores) max = fmaxf(max, score);
  max = WarpMax(max);
#pragma unroll
  for (float& score : scores) sum += score = expf(score - max);
  sum = WarpSum(sum);
#pragma unroll
  for (float& score : scores) score /= sum;
}

// Which groups are chosen: their keys become 0. `choice`: of all experts.
__device__ inline void ChooseGroups(const Router& a, const float* choice, uint32_t* groups) {
  const int size = a.experts / a.n_group;
  for (int g = threadIdx.x % kWarp; g < a.n_group; g += kWarp) {
    groups[g] = KeyOf(
        GroupScore(choice + g * size, size, a.selection == RouterSelection::kGroupTopTwoBiased));
  }
  for (int i = 0; i < a.topk_group; ++i) TakeBest(groups, a.n_group);
  __syncwarp();
}

// A lane has kEach experts in registers: every 32nd.
template <int kEach>
__global__ void __launch_bounds__(kChoosers* kWarp) ChooseExperts(Router a) {
  AfterPriorKernels();
  extern __shared__ float shared[];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t t = int64_t{blockIdx.x} * kChoosers + warp;
  if (t >= a.tokens) return;
  const int live = *a.live;  // used in the end alone: nothing waits for it
  const bool grouped = a.selection != RouterSelection::kGreedy;
  float* choice = shared + warp * (a.experts + a.n_group);
  uint32_t* groups = reinterpret_cast<uint32_t*>(choice + a.experts);
  float scores[kEach];
  uint32_t keys[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = i * kWarp + lane;
    scores[i] = e < a.experts ? a.logits[t * a.experts + e] : -INFINITY;
  }
  Score(a, scores);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = i * kWarp + lane;
    if (e < a.experts) {
      const float biased = scores[i] + (a.bias == nullptr ? 0.0f : a.bias[e]);
      keys[i] = KeyOf(biased);
      if (grouped) choice[e] = biased;
    } else {
      keys[i] = 0;
    }
  }
  if (grouped) {
    __syncwarp();
    ChooseGroups(a, choice, groups);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = i * kWarp + lane;
      if (e < a.experts && groups[e / (a.experts / a.n_group)] != 0) keys[i] = KeyOf(-INFINITY);
    }
  }
  // Lane i keeps the i'th best.
  uint32_t my_id = 0;
  float my_score = 0, sum = 0;
  for (int j = 0; j < a.topk; ++j) {
    uint32_t key = 0, best = 0xffffffffu;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (keys[i] <= key) continue;
      key = keys[i];
      best = i * kWarp + lane;
    }
    const uint32_t greatest = __reduce_max_sync(kAllLanes, key);
    best = __reduce_min_sync(kAllLanes, key == greatest ? best : 0xffffffffu);
    float score = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (best != static_cast<uint32_t>(i * kWarp + lane)) continue;
      score = scores[i];
      keys[i] = 0;
    }
    score = __shfl_sync(kAllLanes, score, static_cast<int>(best % kWarp));
    sum += score;
    if (lane == j) {
      my_id = best;
      my_score = score;
    }
  }
  if (t >= live || lane >= a.topk) return;
  a.ids[t][lane] = static_cast<int32_t>(my_id);
  a.weights[t][lane] = (a.norm_topk_prob ? my_score / (sum + 1e-20f) : my_score) * a.scaling;
}

template <bool kAligned>
void LaunchRouterLogits(const Router& router, cudaStream_t stream) {
  const dim3 experts(static_cast<unsigned>(router.experts));
  if (router.tokens == 1) {
    LaunchOverlapped(RouterLogitsOfFew<kAligned, 1>, experts, kParts * kWarp, 0, stream, router);
  } else if (router.tokens <= kTokens) {
    LaunchOverlapped(RouterLogitsOfFew<kAligned, kTokens>, experts, kParts * kWarp, 0, stream,
                     router);
  } else {
    const dim3 grid(Blocks(router.experts, kWarps), Blocks(router.tokens, kTokens));
    LaunchOverlapped(RouterLogits<kAligned>, grid, kWarps * kWarp, 0, stream, router);
  }
}

}  // namespace kernels

size_t RouteCudaWorkspace(const Stream&, const RouteArgs& a) {
  return static_cast<size_t>(a.x.dim(0) * a.gate.dim(0)) * sizeof(float);
}

void RouteCuda(OpContext& context, const RouteArgs& a) {
  if (a.x.dim(0) == 0) return;
  using namespace kernels;
  const auto experts = static_cast<int32_t>(a.gate.dim(0));
  CHECK(experts <= kMaxExperts && a.ids.dim(1) <= kWarp, "route: {} of {} experts", a.ids.dim(1),
        experts);
  const Router router = {.x = RowsOf<const BF16>(a.x),
                         .gate = Data<float>(a.gate),
                         .bias = Data<float>(a.bias),
                         .tokens = static_cast<int32_t>(a.x.dim(0)),
                         .hidden = static_cast<int32_t>(a.gate.dim(1)),
                         .experts = experts,
                         .topk = static_cast<int32_t>(a.ids.dim(1)),
                         .n_group = a.n_group,
                         .topk_group = a.topk_group,
                         .scoring = a.scoring,
                         .selection = a.selection,
                         .norm_topk_prob = a.norm_topk_prob,
                         .scaling = a.scaling,
                         .live = Data<int32_t>(a.live),
                         .logits = reinterpret_cast<float*>(context.workspace.data()),
                         .ids = RowsOf<int32_t>(a.ids),
                         .weights = RowsOf<float>(a.weights)};
  const cudaStream_t stream = Cuda(context).get();
  const bool aligned = router.hidden % 4 == 0 && router.x.stride % 4 == 0;
  (aligned ? LaunchRouterLogits<true> : LaunchRouterLogits<false>)(router, stream);
  const size_t shared = static_cast<size_t>(kChoosers * (experts + a.n_group)) * sizeof(float);
  const auto choose = experts <= 64    ? ChooseExperts<2>
                      : experts <= 256 ? ChooseExperts<8>
                                       : ChooseExperts<32>;
  LaunchOverlapped(choose, Blocks(router.tokens, kChoosers), kChoosers * kWarp, shared, stream,
                   router);
  Cuda(context).CheckLaunch("route", a.x);
}

}  // namespace fathom
