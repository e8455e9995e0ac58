// What CPU ranks and the reference do of combine: each takes what others made of its tokens, and
// sums it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "ops/ops.h"
#include "ops/pieces.h"

namespace fathom {

// Where a rank's outputs arrive: [each * topk, hidden].
inline size_t InboxBytes(const CombineArgs& a) {
  return static_cast<size_t>(a.exchange.each * a.weights.dim(1) * a.out.dim(1)) * sizeof(float);
}

// What a rank brings: of its live pairs the origins and the outputs.
inline MeetingRanks::Pieces PiecesOf(const CombineArgs& a) {
  const int64_t pairs = *a.pair_live.As<int32_t>();
  return {PieceOf(a.pair_origin, 0, pairs), PieceOf(a.pair_y, 0, pairs)};
}

// `a` outlives it.
inline MeetingRanks::BoundsOf BoundsOfPieces(const CombineArgs& a) {
  return [&a](int, size_t piece) {
    const size_t of_pair = piece == 0
                               ? sizeof(int32_t)
                               : static_cast<size_t>(a.pair_y.dim(1)) * ByteSize(a.pair_y.dtype());
    return TokenBounds(0, a.pair_y.dim(0), of_pair);
  };
}

inline int64_t PairsIn(const MeetingRanks::Pieces& pieces) {
  return static_cast<int64_t>(pieces[0].size() / sizeof(int32_t));
}

// Of a rank's pairs [begin, end) those of this rank's tokens, into its inbox.
inline void TakeOutputs(const CombineArgs& a, const MeetingRanks::Pieces& from, int64_t begin,
                        int64_t end, float* inbox) {
  const int64_t of_rank = a.exchange.each * a.weights.dim(1), hidden = a.out.dim(1);
  CHECK(from[1].size() == static_cast<size_t>(PairsIn(from) * hidden) * sizeof(float),
        "combine: {} pairs in {} bytes", PairsIn(from), from[1].size());
  for (int64_t p = begin; p < end; ++p) {
    const int64_t origin = As<int32_t>(from[0])[p];
    CHECK(origin >= 0, "combine: a pair of token {}", origin);
    if (origin / of_rank != a.exchange.ranks->rank()) continue;
    std::memcpy(inbox + origin % of_rank * hidden, As<float>(from[1]) + p * hidden,
                static_cast<size_t>(hidden) * sizeof(float));
  }
}

// Tokens first + [begin, end).
inline void SumOutputs(const CombineArgs& a, const float* inbox, int64_t begin, int64_t end) {
  const int64_t topk = a.weights.dim(1), hidden = a.out.dim(1);
  for (int64_t n = begin; n < end; ++n) {
    const int64_t t = a.exchange.first + n;
    float* out = a.out.As<float>(t);
    std::fill_n(out, hidden, 0.0f);
    if (n % a.exchange.stride != a.exchange.offset) continue;
    const float* y = inbox + n / a.exchange.stride * topk * hidden;
    for (int64_t j = 0; j < topk; ++j, y += hidden) {
      const float weight = a.weights.As<float>(t)[j];
      for (int64_t i = 0; i < hidden; ++i) out[i] += weight * y[i];
    }
  }
}

// How many tokens from `first` on are live.
inline int64_t TokensOfExchange(const CombineArgs& a) {
  return std::clamp<int64_t>(*a.live.As<int32_t>() - a.exchange.first, 0,
                             a.exchange.each * a.exchange.stride);
}

}  // namespace fathom
