// How the blocks of the narrow MLA decode kernel share a step: each takes items, back and forth,
// from a list that nobody stores. An item is a run of groups of one token's context.
#pragma once

#include <cstdint>

#include "cuda/warp.h"
#include "ops/attend_absorbed/mla_decode_step.h"

namespace fathom::mla {

inline constexpr int kGroupTokens = 2 * kKeys;
inline constexpr int kGroupLog2 = 7;
static_assert(kGroupTokens == 1 << kGroupLog2);

struct NarrowItem {
  int32_t token;  // below 0: there are no more items
  int32_t position;
  int32_t slot;
  int32_t group;   // the first of `groups`
  int32_t groups;  // at most: the context may end before
  int32_t part;    // where the result goes in the work space; below 0: it is the output

  // Positions from the item's first on, at most those of its groups.
  __device__ int32_t length() const {
    return min(position + 1 - group * kGroupTokens, groups * kGroupTokens);
  }
  __device__ int32_t tiles() const { return (length() + kKeys - 1) / kKeys; }
};

// Deals out the work. A unit is a section, or a group where blocks would have little to do.
// First comes an item per token with its first `prefix` units, then the other units one by one. All
// lanes of a warp call it together.
class NarrowWalk {
 public:
  __device__ explicit NarrowWalk(const NarrowStep& step)
      : step_(step), lane_(static_cast<int>(threadIdx.x % 32)) {
    // One round trip to memory: what may be past the live tokens is looked at later.
    const int32_t block = static_cast<int32_t>(blockIdx.x), blocks = gridDim.x;
    LoadTokens();
    own_position_ = block < step.tokens ? step.positions[block] : 0;
    own_slot_ = block < step.tokens ? step.slots[block] : 0;
    live_ = *step.live;
    int32_t groups = 0, sections = 0;
    for (int32_t token = lane_, position = position_; token < live_; token += 32) {
      if (token >= 32) position = step.positions[token];
      groups += (position >> kGroupLog2) + 1;
      sections += (position >> (kGroupLog2 + step.section_log2)) + 1;
    }
    groups = __reduce_add_sync(kAllLanes, groups);
    sections = __reduce_add_sync(kAllLanes, sections);
    const bool fine = groups <= kFineGroups * blocks;
    unit_log2_ = fine ? 0 : step.section_log2;
    prefix_ = fine ? 1 : (sections + blocks - 1) / blocks;
    if (block == 0 && lane_ == 0) *step.plan = make_int2(unit_log2_, prefix_);
    Count();
  }

  // This block's item number `turn`, from 0 on. Blocks go back and forth through the list, so that
  // who got a long item gets the last short one; and while some have a token's first item of
  // several units, the others get as many single ones.
  __device__ NarrowItem Take(int32_t turn) {
    const int32_t block = static_cast<int32_t>(blockIdx.x),
                  blocks = static_cast<int32_t>(gridDim.x);
    const int32_t busy = live_ < blocks ? live_ : 0, idle = blocks - busy;
    const auto place = [](int32_t wave, int32_t at, int32_t count) {
      return wave * count + (wave % 2 == 0 ? at : count - 1 - at);
    };
    if (turn == 0 || busy == 0) return Find(place(turn, block, blocks));
    const int32_t catch_up = prefix_ - 1;
    if (block >= busy && turn <= catch_up) {
      return Find(blocks + place(turn - 1, block - busy, idle));
    }
    const int32_t wave = turn - 1 - (block >= busy ? catch_up : 0);
    return Find(blocks + catch_up * idle + place(wave, block, blocks));
  }

 private:
  // Item number `index`, which must not fall from call to call.
  __device__ NarrowItem Find(int32_t index) {
    if (index < live_) {
      const bool own = index == static_cast<int32_t>(blockIdx.x);
      const int32_t position = own ? own_position_ : step_.positions[index];
      return {.token = index,
              .position = position,
              .slot = own ? own_slot_ : step_.slots[index],
              .group = 0,
              .groups = prefix_ << unit_log2_,
              .part = Units(position) <= prefix_ ? -1 : index};
    }
    const int32_t ordinal = index - live_;
    while (ordinal >= before_ + total_) {
      if (begin_ + 32 >= live_) return {.token = -1};
      before_ += total_;
      begin_ += 32;
      LoadTokens();
      Count();
    }
    const int32_t local = ordinal - before_;
    const int lane = __ffs(static_cast<int>(__ballot_sync(kAllLanes, local < until_))) - 1;
    const int32_t first = __shfl_sync(kAllLanes, until_ - count_, lane);
    const int32_t token = begin_ + lane;
    if (local == first && lane_ == 0) step_.first_single[token] = ordinal;
    return {.token = token,
            .position = __shfl_sync(kAllLanes, position_, lane),
            .slot = __shfl_sync(kAllLanes, slot_, lane),
            .group = (prefix_ + local - first) << unit_log2_,
            .groups = 1 << unit_log2_,
            .part = step_.tokens + ordinal};
  }

  __device__ int32_t Units(int32_t position) const {
    return (position >> (kGroupLog2 + unit_log2_)) + 1;
  }
  __device__ void LoadTokens() {
    const int32_t token = begin_ + lane_;
    position_ = token < step_.tokens ? step_.positions[token] : 0;
    slot_ = token < step_.tokens ? step_.slots[token] : 0;
  }
  __device__ void Count() {
    count_ = begin_ + lane_ < live_ ? max(0, Units(position_) - prefix_) : 0;
    until_ = count_;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int32_t lower = __shfl_up_sync(kAllLanes, until_, distance);
      if (lane_ >= distance) until_ += lower;
    }
    total_ = __shfl_sync(kAllLanes, until_, 31);
  }

  const NarrowStep& step_;
  const int lane_;
  int32_t live_;
  int32_t own_position_, own_slot_;  // of the token that has this block's number
  int32_t unit_log2_, prefix_;
  int32_t begin_ = 0;        // first of 32 tokens
  int32_t position_, slot_;  // of this lane's token
  int32_t before_ = 0;       // single units before these tokens
  int32_t total_ = 0;        // of these tokens
  int32_t count_ = 0;        // of this lane's token
  int32_t until_ = 0;        // of this and the lower lanes' tokens
};

}  // namespace fathom::mla
