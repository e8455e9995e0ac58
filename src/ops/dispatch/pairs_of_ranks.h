// What CPU ranks and the reference do of dispatch: each looks at all ranks' tokens.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "ops/ops.h"

namespace fathom {

// `all`: the DispatchArgs of each rank.
inline const DispatchArgs& OfRank(std::span<const void* const> all, int64_t rank) {
  return *static_cast<const DispatchArgs*>(all[static_cast<size_t>(rank)]);
}

// Numbers this rank's pairs, in the order of ranks, tokens and their experts; returns how many.
inline int64_t ListPairs(const DispatchArgs& a, std::span<const void* const> all) {
  const ExpertExchange& mine = a.exchange;
  const int rank = mine.ranks->rank();
  const Share experts = ShareOf(mine.routed, 1, mine.ranks->size(), rank);
  const int64_t topk = a.ids.dim(1);
  int64_t pairs = 0;
  for (int64_t r = 0; r < static_cast<int64_t>(all.size()); ++r) {
    const DispatchArgs& from = OfRank(all, r);
    const ExpertExchange& e = from.exchange;
    CHECK(e.first == mine.first && e.each == mine.each && e.stride == mine.stride,
          "dispatch: rank {} sends {} tokens from {} on, this one {} from {}", r, e.each, e.first,
          mine.each, mine.first);
    for (int64_t i = 0; i < e.each; ++i) {
      const int64_t t = e.first + e.offset + i * e.stride;
      if (t >= *from.live.As<int32_t>()) break;
      for (int64_t j = 0; j < topk; ++j) {
        const int64_t id = from.ids.As<int32_t>(t)[j];
        const bool shared = id >= e.routed;
        if (shared ? r != rank : id < experts.begin || id >= experts.end) continue;
        CHECK(pairs < a.pair_ids.dim(0), "dispatch: more than {} pairs", pairs);
        a.pair_ids.As<int32_t>()[pairs] =
            static_cast<int32_t>(shared ? id - e.routed + experts.size() : id - experts.begin);
        a.pair_origin.As<int32_t>()[pairs++] = static_cast<int32_t>((r * e.each + i) * topk + j);
      }
    }
  }
  *a.pair_live.As<int32_t>() = static_cast<int32_t>(pairs);
  return pairs;
}

// Of pairs [begin, end).
inline void CopyTokens(const DispatchArgs& a, std::span<const void* const> all, int64_t begin,
                       int64_t end) {
  const int64_t topk = a.ids.dim(1), hidden = a.x.dim(1);
  for (int64_t p = begin; p < end; ++p) {
    const int64_t token = a.pair_origin.As<int32_t>()[p] / topk;
    const DispatchArgs& from = OfRank(all, token / a.exchange.each);
    const ExpertExchange& e = from.exchange;
    std::memcpy(a.pair_x.As<float>(p),
                from.x.As<float>(e.first + e.offset + token % e.each * e.stride),
                static_cast<size_t>(hidden) * sizeof(float));
  }
}

}  // namespace fathom
