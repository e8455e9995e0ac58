// Routing on CUDA: the router's product and the choice of experts.
//   formula:       as ops.h says for RouteArgs
//   data mapping:  a block of 256 threads per token: a warp per expert for the scores, then the
//   first
//                  warp chooses
//   bytes, FLOPs:  the gate once per token, from L2; 2 FLOP a weight
//   accumulator:   fp32: lanes, then a tree
//   expected time: 256 experts of 7168, 1 token: 7.3 MB read by one block, some 50 us; not measured
#include "ops/cuda_kernels.cuh"

namespace fathom {
namespace kernels {

constexpr int kMaxExperts = 1024, kMaxGroups = 64;

struct Router {
  Rows<const BF16> x;
  const float *gate, *bias;
  int32_t hidden, experts, topk, n_group, topk_group;
  RouterScoring scoring;
  RouterSelection selection;
  bool norm_topk_prob;
  float scaling;
  const int32_t* live;
  int32_t* ids;
  float* weights;
};

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

// Logits to scores, by the first warp.
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

__global__ void __launch_bounds__(256) Route(Router a) {
  __shared__ float scores[kMaxExperts], choice[kMaxExperts], groups[kMaxGroups];
  __shared__ bool taken[kMaxExperts];
  const int64_t t = blockIdx.x;
  if (t >= *a.live) return;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int e = warp; e < a.experts; e += static_cast<int>(blockDim.x) / kWarp) {
    const float* gate = a.gate + int64_t{e} * a.hidden;
    float sum = 0;
    for (int k = lane; k < a.hidden; k += kWarp) sum += Load(a.x[t] + k) * gate[k];
    sum = WarpSum(sum);
    if (lane == 0) scores[e] = sum;
  }
  __syncthreads();
  if (warp != 0) return;
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

void RouteCuda(OpContext& context, const RouteArgs& a) {
  if (a.x.dim(0) == 0) return;
  using namespace kernels;
  CHECK(a.gate.dim(0) <= kMaxExperts && a.n_group <= kMaxGroups, "route: {} experts in {} groups",
        a.gate.dim(0), a.n_group);
  const Router router = {.x = RowsOf<const BF16>(a.x),
                         .gate = Data<float>(a.gate),
                         .bias = Data<float>(a.bias),
                         .hidden = static_cast<int32_t>(a.gate.dim(1)),
                         .experts = static_cast<int32_t>(a.gate.dim(0)),
                         .topk = static_cast<int32_t>(a.ids.dim(1)),
                         .n_group = a.n_group,
                         .topk_group = a.topk_group,
                         .scoring = a.scoring,
                         .selection = a.selection,
                         .norm_topk_prob = a.norm_topk_prob,
                         .scaling = a.scaling,
                         .live = Data<int32_t>(a.live),
                         .ids = Data<int32_t>(a.ids),
                         .weights = Data<float>(a.weights)};
  Route<<<static_cast<unsigned>(a.x.dim(0)), 256, 0, Cuda(context).get()>>>(router);
  Cuda(context).CheckLaunch("route", a.x);
}

}  // namespace fathom
