// The choice of a token's experts by one warp of CUDA, as choose_experts.cc.
#pragma once

#include "cuda/kernels.cuh"
#include "ops/norm_token.cuh"

namespace fathom::kernels {

constexpr int kParts = 4;  // of a token's channels, the sums of which are added last

struct Router {
  Slices<const BF16> x;
  const void* gate;  // BF16 or fp32
  const float* bias;
  int32_t tokens, hidden, experts, topk, n_group, topk_group, group_size;
  uint32_t group_inverse;  // 2^20 / group_size, rounded up
  RouterScoring scoring;
  RouterSelection selection;
  bool norm_topk_prob;
  float scaling;
  const int32_t* live;
  float* part_sums;  // [kParts, tokens, experts]
  Slices<int32_t> ids;
  Slices<float> weights;
  AddedNorm norm;  // that makes x first; or its x is null

  // experts / group_size, of up to kMaxExperts.
  __device__ int GroupOf(int expert) const {
    return static_cast<int>(static_cast<uint32_t>(expert) * group_inverse >> 20);
  }
  // Room for a number of each group: whole vectors, as compilers may read beyond the last.
  __host__ __device__ int GroupWords() const { return (n_group + 3) / 4 * 4; }
  // Shared memory in which a warp chooses.
  __host__ __device__ int ChoiceWords() const { return experts + 2 * GroupWords(); }
  // Of a token's logits, [experts].
  __device__ float* PartSums(int part, int64_t t) const {
    return part_sums + (int64_t{part} * tokens + t) * experts;
  }
};

// Numbers that are in the order of RanksAbove(): equal for 0 and -0, 1 for NaN. 0: taken.
__device__ inline uint32_t KeyOf(float x) {
  if (isnan(x)) return 1;
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// The number behind a key.
__device__ inline float NumberOf(uint32_t key) {
  if (key <= 1) return NAN;
  return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}

// Which groups are chosen, to chosen[n_group]. `keys`: of all experts. A group's score is the best
// of it, or the sum of its best two; several lanes share a group if there are enough.
__device__ inline void ChooseGroups(const Router& a, const uint32_t* keys, uint32_t* groups,
                                    uint32_t* chosen) {
  const int lane = threadIdx.x % kWarp;
  int share = 1;  // lanes of a group
  while (2 * share * a.n_group <= kWarp) share *= 2;
#pragma unroll 1
  for (int base = 0; base < a.n_group; base += kWarp / share) {
    const int g = base + lane / share;
    uint32_t best = 0, second = 0;
    const auto add = [&](uint32_t key) {
      second = max(second, min(best, key));
      best = max(best, key);
    };
    if (g < a.n_group) {
#pragma unroll 4
      for (int i = lane % share; i < a.group_size; i += share) add(keys[g * a.group_size + i]);
    }
#pragma unroll 1
    for (int offset = share / 2; offset > 0; offset /= 2) {
      const uint32_t their_second = __shfl_xor_sync(kAllLanes, second, offset);
      add(__shfl_xor_sync(kAllLanes, best, offset));
      add(their_second);
    }
    if (g >= a.n_group || lane % share != 0) continue;
    const bool top_two = a.selection == RouterSelection::kGroupTopTwoBiased && a.group_size > 1;
    groups[g] = top_two ? KeyOf(NumberOf(best) + NumberOf(second)) : best;
  }
  __syncwarp();
#pragma unroll 1
  for (int g = lane; g < a.n_group; g += kWarp) {
    int above = 0;  // groups that rank above; ties to the lower index
#pragma unroll 8
    for (int i = 0; i < a.n_group; ++i) {
      above += groups[i] > groups[g] || (groups[i] == groups[g] && i < g);
    }
    chosen[g] = above < a.topk_group;
  }
  __syncwarp();
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

// One token's experts. A lane has kEach of all in registers: every 32nd, first the logits in
// scores. `all_keys`: shared memory of the warp.
template <int kEach>
__device__ inline void ChooseExperts(const Router& a, int64_t t, const float (&biases)[kEach],
                                     float (&scores)[kEach], uint32_t* all_keys, bool write) {
  const int lane = threadIdx.x % kWarp;
  const bool grouped = a.selection != RouterSelection::kGreedy;
  uint32_t *const groups = all_keys + a.experts, *const chosen = groups + a.GroupWords();
  uint32_t keys[kEach];
  Score(a, scores);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = i * kWarp + lane;
    keys[i] = e < a.experts ? KeyOf(scores[i] + biases[i]) : 0;
    if (grouped && e < a.experts) all_keys[e] = keys[i];
  }
  if (grouped) {
    __syncwarp();
    ChooseGroups(a, all_keys, groups, chosen);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = i * kWarp + lane;
      if (e < a.experts && !chosen[a.GroupOf(e)]) keys[i] = KeyOf(-INFINITY);
    }
  }
  // Lane i keeps the i'th best.
  uint32_t my_id = 0;
  float my_score = 0, sum = 0;
  for (int j = 0; j < a.topk; ++j) {
    uint32_t key = keys[0], best = 0xffffffffu;
#pragma unroll
    for (int i = 1; i < kEach; ++i) key = max(key, keys[i]);
    key = __reduce_max_sync(kAllLanes, key);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      best = min(best, keys[i] == key ? static_cast<uint32_t>(i * kWarp + lane) : 0xffffffffu);
    }
    best = __reduce_min_sync(kAllLanes, best);
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
  if (lane >= a.topk || !write) return;
  a.ids[t][lane] = static_cast<int32_t>(my_id);
  a.weights[t][lane] = (a.norm_topk_prob ? my_score / (sum + 1e-20f) : my_score) * a.scaling;
}

// The biases of experts lane, 32 + lane, ...; they do not depend on the kernels before.
template <int kEach>
__device__ inline void LoadBiases(const Router& a, float (&biases)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = i * kWarp + static_cast<int>(threadIdx.x) % kWarp;
    biases[i] = a.bias != nullptr && e < a.experts ? a.bias[e] : 0.0f;
  }
}

}  // namespace fathom::kernels
