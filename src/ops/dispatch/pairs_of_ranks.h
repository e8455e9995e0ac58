// What CPU ranks and the reference do of dispatch: each looks at all ranks' tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "ops/ops.h"
#include "ops/pieces.h"

namespace fathom {

// What a rank brings: these numbers, and of its live tokens from `first` on the ids and vectors.
struct SentTokens {
  explicit SentTokens(const ExpertExchange& e, int64_t live)
      : first(e.first), each(e.each), stride(e.stride), offset(e.offset) {
    tokens = std::clamp<int64_t>(live - first, 0, each * stride);
  }
  int64_t first, each, stride, offset, tokens;
};

inline MeetingRanks::Pieces PiecesOf(const DispatchArgs& a, const SentTokens& sent) {
  const int64_t begin = sent.tokens == 0 ? 0 : sent.first, end = begin + sent.tokens;
  return {std::as_bytes(std::span(&sent, 1)), PieceOf(a.ids, begin, end), PieceOf(a.x, begin, end)};
}

// `a` outlives it.
inline MeetingRanks::BoundsOf BoundsOfPieces(const DispatchArgs& a) {
  return [&a](int, size_t piece) -> MeetingRanks::Bounds {
    if (piece == 0) return {sizeof(SentTokens), sizeof(SentTokens)};
    const TensorView& x = piece == 1 ? a.ids : a.x;
    return TokenBounds(0, a.exchange.each * a.exchange.stride,
                       static_cast<size_t>(x.dim(1)) * ByteSize(x.dtype()));
  };
}

// Numbers this rank's pairs, in the order of ranks, tokens and their experts; returns how many.
inline int64_t ListPairs(const DispatchArgs& a, std::span<const MeetingRanks::Pieces> all) {
  const ExpertExchange& mine = a.exchange;
  const int rank = mine.ranks->rank();
  const Share experts = ShareOf(mine.routed, 1, mine.ranks->size(), rank);
  const int64_t topk = a.ids.dim(1);
  int64_t pairs = 0;
  for (int64_t r = 0; r < static_cast<int64_t>(all.size()); ++r) {
    const MeetingRanks::Pieces& from = all[static_cast<size_t>(r)];
    const SentTokens& e = *As<SentTokens>(from[0]);
    CHECK(e.first == mine.first && e.each == mine.each && e.stride == mine.stride,
          "dispatch: rank {} sends {} tokens from {} on, this one {} from {}", r, e.each, e.first,
          mine.each, mine.first);
    const auto tokens = static_cast<size_t>(e.tokens);
    CHECK(e.tokens >= 0 && e.offset >= 0 && e.offset < e.stride &&
              from[1].size() == tokens * static_cast<size_t>(topk) * sizeof(int32_t) &&
              from[2].size() == tokens * static_cast<size_t>(a.x.dim(1)) * sizeof(float),
          "dispatch: rank {} sends {} tokens in {} and {} bytes", r, e.tokens, from[1].size(),
          from[2].size());
    for (int64_t i = 0; i < e.each; ++i) {
      const int64_t t = e.offset + i * e.stride;
      if (t >= e.tokens) break;
      for (int64_t j = 0; j < topk; ++j) {
        const int64_t id = As<int32_t>(from[1])[t * topk + j];
        const bool shared = id >= mine.routed;
        if (shared ? r != rank : id < experts.begin || id >= experts.end) continue;
        CHECK(pairs < a.pair_ids.dim(0), "dispatch: more than {} pairs", pairs);
        a.pair_ids.As<int32_t>()[pairs] =
            static_cast<int32_t>(shared ? id - mine.routed + experts.size() : id - experts.begin);
        a.pair_origin.As<int32_t>()[pairs++] = static_cast<int32_t>((r * e.each + i) * topk + j);
      }
    }
  }
  *a.pair_live.As<int32_t>() = static_cast<int32_t>(pairs);
  return pairs;
}

// Of pairs [begin, end).
inline void CopyTokens(const DispatchArgs& a, std::span<const MeetingRanks::Pieces> all,
                       int64_t begin, int64_t end) {
  const int64_t topk = a.ids.dim(1), hidden = a.x.dim(1);
  for (int64_t p = begin; p < end; ++p) {
    const int64_t token = a.pair_origin.As<int32_t>()[p] / topk;
    const MeetingRanks::Pieces& from = all[static_cast<size_t>(token / a.exchange.each)];
    const SentTokens& e = *As<SentTokens>(from[0]);
    std::memcpy(a.pair_x.As<float>(p),
                As<float>(from[2]) + (e.offset + token % e.each * e.stride) * hidden,
                static_cast<size_t>(hidden) * sizeof(float));
  }
}

}  // namespace fathom
