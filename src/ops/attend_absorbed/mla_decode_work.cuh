// How the blocks of the MLA decode kernel share a step: each takes every gridDim.x-th item of a
// list that nobody stores. An item is one part of a row's context, for up to 64 (token, head) pairs
// of that row: a row with several tokens, as when drafts are verified, reads its context once.
#pragma once

#include <cstdint>

#include "cuda/warp.h"
#include "ops/attend_absorbed/mla_decode_step.h"

namespace fathom::mla {

struct Item {
  int32_t token;     // the first of `tokens`
  int32_t tokens;    // 0: there are no more items
  int32_t position;  // of the first token; the others follow
  int32_t slot;
  int32_t part_tokens;
  int32_t part;
  int32_t head_block;

  __device__ int32_t begin() const { return part * part_tokens; }
  __device__ int32_t last_position() const { return position + tokens - 1; }
  // Tiles of the part that hold a position which some token sees.
  __device__ int32_t tiles() const {
    return (min(last_position() + 1 - begin(), part_tokens) + kKeys - 1) / kKeys;
  }
  // The (token, head) pairs.
  __device__ int32_t pairs(const Step& step) const {
    return min(kPairs, tokens * step.heads - head_block * kPairs);
  }
};

// Walks the list of items in order. All lanes of a warp call it together.
class ItemWalk {
 public:
  __device__ explicit ItemWalk(const Step& step) : step_(step), live_(step.Live()) {}

  // Item number `index`, which must not fall from call to call; tokens = 0 past the end.
  __device__ Item Find(int32_t index) {
    while (index >= before_ + total_) {
      if (begin_ + 32 >= live_) return Item{.tokens = 0};
      NextTokens();
    }
    const int32_t local = index - before_;
    const int lane = __ffs(static_cast<int>(__ballot_sync(kAllLanes, local < until_))) - 1;
    const int32_t first = __shfl_sync(kAllLanes, until_ - items_, lane);
    return {.token = begin_ + lane,
            .tokens = __shfl_sync(kAllLanes, tokens_, lane),
            .position = __shfl_sync(kAllLanes, position_, lane),
            .slot = __shfl_sync(kAllLanes, slot_, lane),
            .part_tokens = __shfl_sync(kAllLanes, part_tokens_, lane),
            .part = (local - first) / step_.head_blocks,
            .head_block = (local - first) % step_.head_blocks};
  }

 private:
  // Looks at the next 32 tokens, one a lane: which of them begin an item group.
  __device__ void NextTokens() {
    before_ += total_;
    begin_ += 32;
    const int lane = static_cast<int>(threadIdx.x % 32), token = begin_ + lane;
    // One trip to memory: what may be past the live tokens is looked at later.
    const bool inside = token < step_.tokens;
    const int32_t before_slot = __shfl_sync(kAllLanes, slot_, 31);
    const int32_t before_position = __shfl_sync(kAllLanes, position_, 31);
    slot_ = inside ? step_.slots[token] : -1;
    position_ = inside ? step_.positions[token] : -1;
    int32_t lower_slot = __shfl_up_sync(kAllLanes, slot_, 1);
    int32_t lower_position = __shfl_up_sync(kAllLanes, position_, 1);
    if (lane == 0) lower_slot = before_slot, lower_position = before_position;
    const bool live = token < live_;
    const bool begins_row = live && !Continues(lower_slot, lower_position, slot_, position_, 1);
    const uint32_t rows = __ballot_sync(kAllLanes, begins_row) & (kAllLanes >> (31 - lane));
    const int32_t row = rows == 0 ? row_begin_ : begin_ + 31 - __clz(static_cast<int>(rows));
    tokens_ = 0;
    if (live && (token - row) % step_.group_tokens == 0) {
      tokens_ = 1;
      while (tokens_ < step_.group_tokens && token + tokens_ < live_ &&
             Continues(slot_, position_, step_.slots[token + tokens_],
                       step_.positions[token + tokens_], tokens_)) {
        ++tokens_;
      }
    }
    part_tokens_ = step_.PartTokens(position_);
    items_ = tokens_ == 0 ? 0 : ((position_ + tokens_ - 1) / part_tokens_ + 1) * step_.head_blocks;
    until_ = items_;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int32_t lower = __shfl_up_sync(kAllLanes, until_, distance);
      if (lane >= distance) until_ += lower;
    }
    total_ = __shfl_sync(kAllLanes, until_, 31);
    row_begin_ = __shfl_sync(kAllLanes, row, 31);
  }

  // Whether a token is of the same row as one `distance` before it, and its context cut in the same
  // way.
  __device__ bool Continues(int32_t slot, int32_t position, int32_t later_slot,
                            int32_t later_position, int32_t distance) const {
    return slot == later_slot && position + distance == later_position &&
           step_.PartTokens(position) == step_.PartTokens(later_position);
  }

  const Step& step_;
  const int32_t live_;
  int32_t begin_ = -32;                // first of the 32 tokens
  int32_t row_begin_ = 0;              // first token of the row that the last of them is in
  int32_t before_ = 0;                 // items before these tokens
  int32_t total_ = 0;                  // items of these tokens
  int32_t slot_ = -1, position_ = -1;  // of this lane's token
  int32_t tokens_ = 0;                 // of the group that this lane's token begins, or 0
  int32_t part_tokens_;                // of its parts
  int32_t items_ = 0;                  // of that group
  int32_t until_ = 0;                  // items of this and the lower lanes
};

}  // namespace fathom::mla
