// Which pairs of few tokens and their experts a block multiplies: found by each block among the
// ids, so that nothing is sorted beforehand.
#pragma once

#include <cstdint>

#include "cuda/warp.h"

namespace fathom {

// Pairs of one matrix. A pair is a number: token * topk + j.
struct FewPairs {
  static constexpr int kPairs = 8, kMost = 128;  // of a block; of a step
  int32_t matrix, count;                         // count 0: there is no such group
  int32_t first_rank;
  int32_t pair[kPairs];
  int32_t ids[kMost];
};

// Few tokens, and the experts that each of them has.
struct FewTokens {
  const int32_t *ids, *live;  // [tokens, topk]; [1]
  int32_t tokens, topk;
  int32_t end = INT32_MAX;  // experts from here on, which are each token's last, are not searched
};

// `shared` gets the group'th kPairs pairs of equal expert, or fewer, in order of their first pair.
// One warp.
template <int kPairs = FewPairs::kPairs>
__device__ inline void FindPairs(FewPairs& shared, const FewTokens& of, int32_t group) {
  constexpr int kEach = FewPairs::kMost / 32;
  static_assert(kPairs <= FewPairs::kPairs);
  const int lane = threadIdx.x % 32;
  const int32_t live = __ldcg(of.live);
  if (of.tokens == 1) {  // a pair a group
    if (lane > 0) return;
    shared.matrix = __ldcg(of.ids + group), shared.pair[0] = group;
    shared.count = live > 0;
    return;
  }
  int32_t id[kEach], rank[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {  // does not wait for `live`
    const int32_t pair = 32 * i + lane;
    id[i] = pair < of.tokens * of.topk ? __ldcg(of.ids + pair) : -1;
  }
  const int32_t pairs = min(live, of.tokens) * of.topk;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int32_t pair = 32 * i + lane;
    if (pair >= pairs || id[i] >= of.end) id[i] = -1;
    rank[i] = 0;
    shared.ids[pair] = id[i];
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (32 * i >= pairs) break;
#pragma unroll 8
    for (int32_t other = 0; other < min(pairs, 32 * i + 31); ++other) {
      rank[i] += shared.ids[other] == id[i] && other < 32 * i + lane;
    }
  }
  if (lane == 0) shared.count = 0;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const bool first = id[i] >= 0 && rank[i] % kPairs == 0;
    const unsigned firsts = __ballot_sync(kAllLanes, first);
    if (first && __popc(firsts & ((1u << lane) - 1)) == group) {
      shared.matrix = id[i];
      shared.first_rank = rank[i];
      shared.count = 1;
    }
    group -= __popc(firsts);
  }
  __syncwarp();
  if (shared.count == 0) return;
  const int32_t matrix = shared.matrix, first_rank = shared.first_rank;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int32_t place = rank[i] - first_rank;
    if (id[i] != matrix || place < 0 || place >= kPairs) continue;
    shared.pair[place] = 32 * i + lane;
    atomicMax(&shared.count, place + 1);
  }
}

// The pairs of all tokens, at most eight, with the expert whose id each token has at `place`. One
// warp.
__device__ inline void FindPairsOfAll(FewPairs& shared, const FewTokens& of, int32_t place) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  if (lane < FewPairs::kPairs) shared.pair[lane] = lane * of.topk + place;
  if (lane == 0) shared.count = min(__ldcg(of.live), of.tokens);
}

}  // namespace fathom
