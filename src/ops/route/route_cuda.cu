// Routing on CUDA: the router's product, then the choice of experts.
//   formula:       as ops.h says for RouteArgs
//   data mapping:  scores: a warp per expert and 8 tokens; choice: a warp per token
//   bytes, FLOPs:  the gate once per 8 tokens, from L2; 2 FLOP a weight and token
//   accumulator:   fp32: a lane takes four channels in every 128, then a tree over lanes
//   expected time: 256 experts of 7168: 1 token 7 us, 128 tokens 30 us; not measured
#include "ops/cuda_kernels.cuh"

namespace fathom {
namespace kernels {

constexpr int kMaxExperts = 1000;  // their scores lie in 48 KiB

constexpr int kTokens = 8, kWarps = 8;  // of a block of scores
constexpr int kChoosers = 4;            // tokens of a block that chooses

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
  int32_t* ids;
  float* weights;
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

template <bool kAligned>
__global__ void __launch_bounds__(kWarps* kWarp) RouterLogits(Router a) {
  AfterPriorKernels();
  const int lane = threadIdx.x % kWarp;
  const int expert = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int first = static_cast<int>(blockIdx.y) * kTokens, live = min(*a.live, a.tokens);
  if (expert >= a.experts || first >= live) return;
  const float* gate = a.gate + int64_t{expert} * a.hidden;
  float sums[kTokens] = {};
#pragma unroll 4
  for (int k = lane * 4; k < a.hidden; k += kWarp * 4) {
    const float4 g = LoadGate<kAligned>(gate, k, a.hidden);
#pragma unroll
    for (int r = 0; r < kTokens; ++r) {
      if (first + r >= live) break;
      const float4 x = LoadX<kAligned>(a.x[first + r], k, a.hidden);
      sums[r] += x.x * g.x;
      sums[r] += x.y * g.y;
      sums[r] += x.z * g.z;
      sums[r] += x.w * g.w;
    }
  }
#pragma unroll
  for (int r = 0; r < kTokens; ++r) {
    const float sum = WarpSum(sums[r]);
    if (lane == r && first + r < live) a.logits[int64_t{first + r} * a.experts + expert] = sum;
  }
}

// The index of the best of keys[0, n), ties to the lower index, in every lane of the warp.
__device__ inline int WarpBest(const float* keys, const bool* taken, int n) {
  int best = -1;
  float key = 0;
  const auto consider = [&](float other_key, int other) {
    if (other < 0) return;
    const bool above =
        best < 0 || RanksAbove(other_key, key) || (!RanksAbove(key, other_key) && other < best);
    if (above) {
      best = other;
      key = other_key;
    }
  };
  for (int i = threadIdx.x % kWarp; i < n; i += kWarp) {
    if (!taken[i]) consider(keys[i], i);
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const float other_key = __shfl_xor_sync(kAllLanes, key, offset);
    consider(other_key, __shfl_xor_sync(kAllLanes, best, offset));
  }
  return best;
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

// Logits to scores.
__device__ inline void Score(const Router& a, float* scores) {
  const int lane = threadIdx.x % kWarp;
  if (a.scoring == RouterScoring::kSigmoid) {
    for (int e = lane; e < a.experts; e += kWarp) scores[e] = 1.0f / (1.0f + expf(-scores[e]));
    return;
  }
  float max = -INFINITY, sum = 0;
  for (int e = lane; e < a.experts; e += kWarp) max = fmaxf(max, scores[e]);
  max = WarpMax(max);
  for (int e = lane; e < a.experts; e += kWarp) sum += scores[e] = expf(scores[e] - max);
  sum = WarpSum(sum);
  for (int e = lane; e < a.experts; e += kWarp) scores[e] /= sum;
}

// Experts outside the best groups become -inf.
__device__ inline void MaskGroups(const Router& a, float* choice, float* groups, bool* taken) {
  const int lane = threadIdx.x % kWarp, size = a.experts / a.n_group;
  for (int g = lane; g < a.n_group; g += kWarp) {
    groups[g] =
        GroupScore(choice + g * size, size, a.selection == RouterSelection::kGroupTopTwoBiased);
    taken[g] = false;
  }
  __syncwarp();
  for (int i = 0; i < a.topk_group; ++i) {
    const int best = WarpBest(groups, taken, a.n_group);
    __syncwarp();
    if (lane == 0) taken[best] = true;
    __syncwarp();
  }
  for (int e = lane; e < a.experts; e += kWarp) {
    if (!taken[e / size]) choice[e] = -INFINITY;
  }
  __syncwarp();
}

__global__ void __launch_bounds__(kChoosers* kWarp) ChooseExperts(Router a) {
  AfterPriorKernels();
  extern __shared__ float shared[];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t t = int64_t{blockIdx.x} * kChoosers + warp;
  if (t >= *a.live || t >= a.tokens) return;
  float* scores = shared + warp * (3 * a.experts + a.n_group);
  float *choice = scores + a.experts, *groups = choice + a.experts;
  bool* taken = reinterpret_cast<bool*>(groups + a.n_group);
  for (int e = lane; e < a.experts; e += kWarp) scores[e] = a.logits[t * a.experts + e];
  __syncwarp();
  Score(a, scores);
  __syncwarp();
  for (int e = lane; e < a.experts; e += kWarp) {
    choice[e] = scores[e] + (a.bias == nullptr ? 0.0f : a.bias[e]);
  }
  __syncwarp();
  if (a.selection != RouterSelection::kGreedy) MaskGroups(a, choice, groups, taken);
  for (int e = lane; e < a.experts; e += kWarp) taken[e] = false;
  __syncwarp();
  int32_t* ids = a.ids + t * a.topk;
  float* weights = a.weights + t * a.topk;
  float sum = 0;
  for (int i = 0; i < a.topk; ++i) {
    const int best = WarpBest(choice, taken, a.experts);
    __syncwarp();
    if (lane == 0) {
      taken[best] = true;
      ids[i] = best;
    }
    sum += scores[best];
    __syncwarp();
  }
  if (lane != 0) return;
  for (int i = 0; i < a.topk; ++i) {
    const float weight = scores[ids[i]];
    weights[i] = (a.norm_topk_prob ? weight / (sum + 1e-20f) : weight) * a.scaling;
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
  CHECK(experts <= kMaxExperts, "route: {} experts", experts);
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
                         .ids = Data<int32_t>(a.ids),
                         .weights = Data<float>(a.weights)};
  const cudaStream_t stream = Cuda(context).get();
  const dim3 grid(Blocks(experts, kWarps), Blocks(router.tokens, kTokens));
  const bool aligned = router.hidden % 4 == 0 && router.x.stride % 4 == 0;
  LaunchOverlapped(aligned ? RouterLogits<true> : RouterLogits<false>, grid, kWarps * kWarp, 0,
                   stream, router);
  const size_t shared = static_cast<size_t>(kChoosers * (3 * experts + a.n_group)) * sizeof(float);
  LaunchOverlapped(ChooseExperts, Blocks(router.tokens, kChoosers), kChoosers * kWarp, shared,
                   stream, router);
  Cuda(context).CheckLaunch("route", a.x);
}

}  // namespace fathom
