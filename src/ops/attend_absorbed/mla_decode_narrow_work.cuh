// How the blocks of the narrow MLA decode kernel share a step: each takes items, back and forth,
// from a list that nobody stores. An item is a run of groups of one token's context, or of that of
// two tokens of a row, which then read it once. Items of one row go through it at one speed, so
// that what one loads is in the L2 when the others want it: a token that is left over is computed
// as two.
#pragma once

#include <cuda_pipeline.h>

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

  // Tokens that are computed; what comes of one behind `tokens` is not written.
  __device__ int32_t width() const { return shared ? 2 : tokens; }
  // Positions from the item's first on that the last token sees, at most those of its groups.
  __device__ int32_t length() const {
    return min(position + tokens - group * kGroupTokens, groups * kGroupTokens);
  }
  __device__ int32_t tiles() const { return (length() + kKeys - 1) / kKeys; }
};

// The first tokens of a step of more than 32, in shared memory: one trip for all of them.
inline constexpr int kNarrowTokens = 256;
struct NarrowTokens {
  int32_t positions[kNarrowTokens], slots[kNarrowTokens];

  // All lanes of a warp together.
  __device__ void Load(const NarrowStep& step, int lane) {
    for (int token = lane; token < min(step.tokens, kNarrowTokens); token += kWarp) {
      __pipeline_memcpy_async(&positions[token], step.positions + token, sizeof(int32_t));
      __pipeline_memcpy_async(&slots[token], step.slots + token, sizeof(int32_t));
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncwarp();
  }
};

// A token's parts: the first item's, then those of single units.
struct TokenParts {
  __device__ int64_t Place(int32_t part) const { return part == 0 ? token : first + part; }

  int32_t token, first, count;  // count <= 1: the result is there, or the token is not live
  int32_t section_mask;         // in units, of which a section has a power of two
};

// Deals out the work. A unit is a section, or a group where blocks would have little to do. First
// come the first items, each with the first `prefix` units of its tokens, then the other units one
// by one. All lanes of a warp call it together. Of memory only what is early (ops.h) is read, and
// nothing is written, but by Publish. kMany: there may be more first items than blocks.
template <bool kMany>
class NarrowWalk {
 public:
  // tokens: room for those of a step of more than 32; of fewer null will do.
  __device__ NarrowWalk(const NarrowStep& step, NarrowTokens* tokens, int32_t blocks)
      : step_(step), tokens_(tokens), lane_(static_cast<int>(threadIdx.x % 32)), live_(*step.live) {
    if (several_looks()) tokens->Load(step, lane_);
    int32_t items = 0, groups = 0, sections = 0, longest = 0;
    for (int32_t begin = 0; begin == 0 || begin < live_; begin += 32) {
      Look(begin);
      if (count_ == 0) continue;
      ++items;
      groups += (position_ >> kGroupLog2) + 1;
      const int32_t own = (position_ >> (kGroupLog2 + step.section_log2)) + 1;
      sections += own;
      longest = max(longest, own);
    }
    items_ = __reduce_add_sync(kAllLanes, items);
    groups = __reduce_add_sync(kAllLanes, groups);
    sections = __reduce_add_sync(kAllLanes, sections);
    const bool fine = groups <= kFineGroups * blocks;
    unit_log2_ = fine ? 0 : step.section_log2;
    prefix_ = fine ? 1 : (sections + blocks - 1) / blocks;
    leaves_room_ = 2 * (fine ? groups : sections) <= blocks;
    if (!kMany || items_ <= blocks) return;
    waves_ = (items_ + blocks - 1) / blocks;
    longest = __reduce_max_sync(kAllLanes, longest);
    if (2 * waves_ * min(longest, prefix_) > 3 * prefix_) ShortenPrefix();
  }

  // This block's item number `turn`, from 0 on. Blocks go back and forth through the list, so that
  // who got a long item gets the last short one; and while some have a first item of several units
  // in the last wave of such, the others get as many single ones.
  __device__ NarrowItem Take(int32_t turn) {
    const int32_t blocks = static_cast<int32_t>(gridDim.x), last = kMany ? waves_ - 1 : 0;
    if (turn <= last) return Find(turn * blocks + InWave(turn, block(), blocks));
    const int32_t busy = items_ - last * blocks, catch_up = prefix_ - 1;
    int32_t before = (last + 1) * blocks, wave = turn - last - 1,
            at = InWave(last, block(), blocks), count = blocks;
    const bool late = at >= busy;
    if (late && wave < catch_up) {
      at -= busy, count -= busy;
    } else {
      before += catch_up * (blocks - busy);
      wave -= late ? catch_up : 0;
    }
    return Find(before + wave * count + InWave(wave, at, count));
  }

  // Leaves what CombineMany must know of this block's item number `turn`.
  __device__ void Publish(int32_t turn, const NarrowItem& item) const {
    if (turn == 0 && block() == 0 && lane_ == 0) *step_.plan = make_int2(unit_log2_, prefix_);
    const bool first_single = item.group > 0 && item.group == prefix_ << unit_log2_;
    if (first_single && lane_ < item.tokens) {
      step_.first_single[item.token + lane_] = lane_ == 0 ? item.part : item.next_part;
    }
  }

  // Whether half of the blocks have nothing to do.
  __device__ bool leaves_room() const { return leaves_room_; }

  // Instead of taking items: the parts of a token of a step of at most 32.
  __device__ TokenParts PartsOf(int32_t token) {
    CountSingles();
    const uint32_t firsts = __ballot_sync(kAllLanes, count_ > 0);
    const int first = 31 - __clz(static_cast<int>(firsts << (31 - token) >> (31 - token)));
    const int32_t singles = max(0, Units(__shfl_sync(kAllLanes, position_, first)) - prefix_);
    const int32_t behind = __shfl_sync(kAllLanes, count_, first) - (token - first);  // with it
    return {
        .token = token,
        .first = step_.tokens + __shfl_sync(kAllLanes, parts_until_, first) - singles * behind - 1,
        .count = token < live_ ? singles + 1 : 0,
        .section_mask = (1 << (step_.section_log2 - unit_log2_)) - 1};
  }

 private:
  static __device__ int32_t block() { return static_cast<int32_t>(blockIdx.x); }
  // The place of who is at `at` of `count` in the first wave.
  static __device__ int32_t InWave(int32_t wave, int32_t at, int32_t count) {
    return wave % 2 == 0 ? at : count - 1 - at;
  }

  // First items of at most a wave's share of a block's units: else, in few waves of items of
  // unequal length, or where the last wave leaves most blocks out, some would have twice their
  // share. If there is room for the parts.
  __device__ void ShortenPrefix() {
    const int32_t whole = prefix_;
    prefix_ = (whole + waves_ - 1) / waves_;
    int32_t parts = 0;
    for (int32_t begin = 0; begin < live_; begin += 32) {
      Look(begin);
      parts += max(0, Units(position_) - prefix_) * count_;
    }
    if (__reduce_add_sync(kAllLanes, parts) > step_.max_singles) prefix_ = whole;
  }

  struct Token {
    int32_t position, slot;
    __device__ bool Precedes(const Token& next) const {
      return slot == next.slot && position + 1 == next.position;
    }
  };
  // One behind the live ones may be anything.
  __device__ Token At(int32_t token) const {
    const bool here = several_looks() && token < kNarrowTokens;
    if (!here && token >= step_.tokens) return {0, 0};
    return {(here ? tokens_->positions : step_.positions)[token],
            (here ? tokens_->slots : step_.slots)[token]};
  }

  // Looks at 32 tokens from `begin` on, one a lane. Tokens whose contexts have as many groups pair
  // up from their row's first on, which is never sought before `begin`.
  __device__ void Look(int32_t begin) {
    const int32_t token = begin + lane_;
    const Token last = At(max(begin - 1, 0)), own = At(token), next = At(token + 1);
    position_ = own.position, slot_ = own.slot;
    // Bits: tokens whose row goes on behind them; and that go on with a row, bit 0 for lane 0 only.
    const uint32_t going_on = __ballot_sync(kAllLanes, token + 1 < live_ && own.Precedes(next)),
                   joining = going_on << 1 | (begin > 0 && last.Precedes(own));
    const uint32_t firsts = 1 | ~joining | __ballot_sync(kAllLanes, position_ % kGroupTokens == 0);
    const int32_t before = __clz(static_cast<int>(firsts << (31 - lane_)));  // since a first one
    const uint32_t second = ~firsts >> lane_ >> 1 & 1;
    count_ = token < live_ && before % 2 == 0 ? 1 + static_cast<int32_t>(second) : 0;
    shared_ = static_cast<int32_t>((joining | going_on >> second) >> lane_ & 1);
  }

  // Item number `index`, which must not fall from call to call.
  __device__ NarrowItem Find(int32_t index) {
    if (index >= items_ && !singles_) singles_ = true, begin_ = -32, before_ = total_ = 0;
    const int32_t ordinal = singles_ ? index - items_ : index;
    while (ordinal >= before_ + total_) {
      if (begin_ + 32 >= live_) return {.token = -1};
      before_ += total_;
      parts_before_ += parts_total_;
      begin_ += 32;
      if (several_looks()) Look(begin_);
      if (singles_) {
        CountSingles();
      } else {
        CountItems();
      }
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
    const int32_t part = step_.tokens + parts_before_ + __shfl_sync(kAllLanes, parts_until_, lane) -
                         units * item.tokens;
    item.group = (prefix_ + unit) << unit_log2_;
    item.groups = 1 << unit_log2_;
    item.part = part + unit;
    item.next_part = item.part + units;
    return item;
  }

  // Whether there are more tokens than lanes: others are looked at once, when they are counted.
  __device__ bool several_looks() const { return step_.tokens > kWarp; }
  __device__ int32_t Units(int32_t position) const {
    return (position >> (kGroupLog2 + unit_log2_)) + 1;
  }
  // The first items of these tokens.
  __device__ void CountItems() {
    const uint32_t items = __ballot_sync(kAllLanes, count_ > 0);
    until_ = __popc(items << (31 - lane_));
    total_ = __popc(items);
  }
  // Their single units.
  __device__ void CountSingles() {
    until_ = count_ == 0 ? 0 : max(0, Units(position_) - prefix_);
    parts_until_ = until_ * count_;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int32_t lower = __shfl_up_sync(kAllLanes, until_, distance);
      const int32_t lower_parts = __shfl_up_sync(kAllLanes, parts_until_, distance);
      if (lane_ >= distance) until_ += lower, parts_until_ += lower_parts;
    }
    total_ = __shfl_sync(kAllLanes, until_, 31);
    parts_total_ = __shfl_sync(kAllLanes, parts_until_, 31);
  }

  const NarrowStep& step_;
  const NarrowTokens* const tokens_;
  const int lane_;
  const int32_t live_;
  int32_t items_;  // first ones, of all tokens
  int32_t unit_log2_, prefix_;
  bool leaves_room_;
  int32_t waves_ = 1;     // of blocks that take first items
  bool singles_ = false;  // whether single units are looked at, and no longer first items
  // Of this lane's token, of the 32 that are looked at:
  int32_t begin_ = -32, position_, slot_;
  int32_t shared_;                         // whether its row has other items than its own
  int32_t count_;                          // tokens of the items that begin with it, or 0
  int32_t until_ = 0, parts_until_ = 0;    // items of this and the lower lanes' tokens; their parts
  int32_t total_ = 0, parts_total_ = 0;    // of these tokens
  int32_t before_ = 0, parts_before_ = 0;  // of those before
};

}  // namespace fathom::mla
