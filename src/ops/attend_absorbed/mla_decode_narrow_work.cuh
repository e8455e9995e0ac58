// How the blocks of the narrow MLA decode kernel share a step: each takes items, back and forth,
// from a list that nobody stores. An item is a run of groups of one token's context, or of that of
// two tokens of a row, which then read it once.
#pragma once

#include <cstdint>

#include "cuda/warp.h"
#include "ops/attend_absorbed/mla_decode_step.h"

namespace fathom::mla {

inline constexpr int kGroupTokens = 2 * kKeys;
inline constexpr int kGroupLog2 = 7;
static_assert(kGroupTokens == 1 << kGroupLog2);

struct NarrowItem {
  int32_t token;     // the first of `tokens`; below 0: there are no more items
  int32_t tokens;    // 1 or 2: tokens of a row whose contexts have as many groups
  int32_t position;  // of the first token; the other follows
  int32_t slot;
  int32_t group;      // the first of `groups`
  int32_t groups;     // at most: the context may end before
  int32_t part;       // where the first token's result goes in the work space; below 0: it is the
  int32_t next_part;  // output. Where the second token's goes
  bool shared;        // other items, of the same row, read the same context

  // Positions from the item's first on that the last token sees, at most those of its groups.
  __device__ int32_t length() const {
    return min(position + tokens - group * kGroupTokens, groups * kGroupTokens);
  }
  __device__ int32_t tiles() const { return (length() + kKeys - 1) / kKeys; }
};

// Deals out the work. A unit is a section, or a group where blocks would have little to do. First
// come the first items, each with the first `prefix` units of its tokens, then the other units one
// by one. All lanes of a warp call it together.
class NarrowWalk {
 public:
  __device__ explicit NarrowWalk(const NarrowStep& step)
      : step_(step), lane_(static_cast<int>(threadIdx.x % 32)), live_(*step.live) {
    const int32_t block = static_cast<int32_t>(blockIdx.x), blocks = gridDim.x;
    int32_t items = 0, groups = 0, sections = 0;
    for (int32_t begin = 0; begin == 0 || begin < live_; begin += 32) {  // one trip for few tokens
      Look(begin);
      if (count_ == 0) continue;
      ++items;
      groups += (position_ >> kGroupLog2) + 1;
      sections += (position_ >> (kGroupLog2 + step.section_log2)) + 1;
    }
    items_ = __reduce_add_sync(kAllLanes, items);
    groups = __reduce_add_sync(kAllLanes, groups);
    sections = __reduce_add_sync(kAllLanes, sections);
    const bool fine = groups <= kFineGroups * blocks;
    unit_log2_ = fine ? 0 : step.section_log2;
    prefix_ = fine ? 1 : (sections + blocks - 1) / blocks;
    if (block == 0 && lane_ == 0) *step.plan = make_int2(unit_log2_, prefix_);
    begin_ = -32;
  }

  // This block's item number `turn`, from 0 on. Blocks go back and forth through the list, so that
  // who got a long item gets the last short one; and while some have a first item of several units,
  // the others get as many single ones.
  __device__ NarrowItem Take(int32_t turn) {
    const int32_t block = static_cast<int32_t>(blockIdx.x),
                  blocks = static_cast<int32_t>(gridDim.x);
    const int32_t busy = items_ < blocks ? items_ : 0, catch_up = prefix_ - 1;
    int32_t before = 0, wave = turn, at = block, count = blocks;
    if (turn > 0 && busy > 0) {
      const bool late = block >= busy;
      before = blocks;
      wave = turn - 1;
      if (late && turn <= catch_up) {
        at = block - busy, count = blocks - busy;
      } else {
        before += catch_up * (blocks - busy);
        wave -= late ? catch_up : 0;
      }
    }
    return Find(before + wave * count + (wave % 2 == 0 ? at : count - 1 - at));
  }

 private:
  // Looks at 32 tokens from `begin` on, one a lane. Tokens pair up from their row's first on, which
  // is never sought before `begin`.
  __device__ void Look(int32_t begin) {
    begin_ = begin;
    const int32_t token = begin + lane_;
    // One trip to memory: what may be past the live tokens is looked at later.
    const bool inside = token < step_.tokens;
    position_ = inside ? step_.positions[token] : 0;
    slot_ = inside ? step_.slots[token] : 0;
    const int32_t lower_slot = __shfl_up_sync(kAllLanes, slot_, 1);
    const int32_t lower_position = __shfl_up_sync(kAllLanes, position_, 1);
    const bool follows = lane_ > 0 && token < live_ && lower_slot == slot_ &&
                         lower_position + 1 == position_ && position_ % kGroupTokens != 0;
    const uint32_t following = __ballot_sync(kAllLanes, follows);
    const uint32_t rows = ~following & (kAllLanes >> (31 - lane_));
    const int32_t in_row = lane_ - (31 - __clz(static_cast<int>(rows)));
    const uint32_t later = following >> lane_ >> 1;
    shared_ = in_row > 1 || (later & 3) == 3;
    const bool first = token < live_ && in_row % 2 == 0;
    count_ = first ? 1 + static_cast<int32_t>(later & 1) : 0;
  }

  // Item number `index`, which must not fall from call to call.
  __device__ NarrowItem Find(int32_t index) {
    if (index >= items_ && !singles_) singles_ = true, begin_ = -32, before_ = total_ = 0;
    const int32_t ordinal = singles_ ? index - items_ : index;
    while (ordinal >= before_ + total_) {
      if (begin_ + 32 >= live_) return {.token = -1};
      before_ += total_;
      parts_before_ += parts_total_;
      Look(begin_ + 32);
      Count();
    }
    const int32_t local = ordinal - before_;
    const int lane = __ffs(static_cast<int>(__ballot_sync(kAllLanes, local < until_))) - 1;
    NarrowItem item = {.token = begin_ + lane,
                       .tokens = __shfl_sync(kAllLanes, count_, lane),
                       .position = __shfl_sync(kAllLanes, position_, lane),
                       .slot = __shfl_sync(kAllLanes, slot_, lane),
                       .shared = __shfl_sync(kAllLanes, shared_, lane) != 0};
    if (!singles_) {
      item.group = 0;
      item.groups = prefix_ << unit_log2_;
      item.part = Units(item.position) <= prefix_ ? -1 : item.token;
      item.next_part = item.token + 1;
      return item;
    }
    const int32_t units = Units(item.position) - prefix_;
    const int32_t unit = local - __shfl_sync(kAllLanes, until_, lane) + units;
    const int32_t part =
        parts_before_ + __shfl_sync(kAllLanes, parts_until_, lane) - units * item.tokens;
    if (unit == 0 && lane_ < item.tokens) {
      step_.first_single[item.token + lane_] = part + lane_ * units;
    }
    item.group = (prefix_ + unit) << unit_log2_;
    item.groups = 1 << unit_log2_;
    item.part = step_.tokens + part + unit;
    item.next_part = item.part + units;
    return item;
  }

  __device__ int32_t Units(int32_t position) const {
    return (position >> (kGroupLog2 + unit_log2_)) + 1;
  }
  // Items of these tokens: the first ones, or single units.
  __device__ void Count() {
    until_ = count_ == 0 ? 0 : singles_ ? max(0, Units(position_) - prefix_) : 1;
    parts_until_ = until_ * count_;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int32_t lower = __shfl_up_sync(kAllLanes, until_, distance);
      const int32_t lower_parts = __shfl_up_sync(kAllLanes, parts_until_, distance);
      if (lane_ >= distance) until_ += lower, parts_until_ += lower_parts;
    }
    total_ = __shfl_sync(kAllLanes, until_, 31);
    parts_total_ = singles_ ? __shfl_sync(kAllLanes, parts_until_, 31) : 0;
  }

  const NarrowStep& step_;
  const int lane_;
  const int32_t live_;
  int32_t items_;  // first ones, of all tokens
  int32_t unit_log2_, prefix_;
  bool singles_ = false;  // whether single units are looked at, and no longer first items
  // Of this lane's token, of the 32 that are looked at:
  int32_t begin_ = -32, position_, slot_;
  int32_t shared_;                         // whether its row has several items
  int32_t count_;                          // tokens of the items that begin with it, or 0
  int32_t until_ = 0, parts_until_ = 0;    // items of this and the lower lanes' tokens; their parts
  int32_t total_ = 0, parts_total_ = 0;    // of these tokens
  int32_t before_ = 0, parts_before_ = 0;  // of those before
};

}  // namespace fathom::mla
