// How all_reduce_norm on GPUs cuts what travels in windows: into rounds of tokens. Each token of a
// large message has an owner, who sums, adds to its residual, norms, and hands on what it normed. A
// small one, as packets would take if they could go, is summed by all: that is one exchange, not
// two; and so is a large one whose residual is to be whole.
#pragma once

#include <algorithm>

#include "parallel/layout.h"
#include "parallel/peer_view.h"

namespace fathom {

struct SumRound {
  int64_t first = 0, count = 0;  // tokens of the message
  int64_t each = 0;              // tokens of an owner
  bool owned = false;            // else all ranks sum all tokens

  // By sizes alone, so that all ranks, and all messages of a step, are cut alike.
  static SumRound At(int64_t first, int64_t tokens, size_t token_bytes, int ranks, bool whole) {
    const bool owned =
        !whole && !PeerExchange::TakesPackets(static_cast<size_t>(tokens) * token_bytes, ranks);
    const auto each = static_cast<int64_t>(kWindowBytes / token_bytes) / ranks;
    const int64_t count = std::min(tokens - first, owned ? each * ranks : each);
    return {first, count, owned ? (count + ranks - 1) / ranks : count, owned};
  }
  // The tokens of the round that a rank sums.
  Share Of(int rank) const {
    if (!owned) return {0, count};
    const int64_t begin = std::min(count, rank * each);
    return {begin, std::min(count, begin + each)};
  }
};

}  // namespace fathom
