// How the blocks of the wide MLA decode kernels share a step. An item is one part of a row's
// context, for up to 64 (token, head) pairs of that row: a row with several tokens, as when drafts
// are verified, reads its context once. Items are listed by falling size and dealt back and forth,
// so that all takers come to about as many tiles; who computes an item changes none of its bits.
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

// Runs of items are sorted by classes of 64 - tiles; longer parts than of 64 tiles are in class 0.
inline constexpr int kRunClasses = 64;

// What ItemOrder needs of shared memory, for steps of up to kTokens tokens. By group, and before
// FindGroups by token: `slots` and `positions`.
template <int kTokens>
struct OrderShared {
  int32_t slots[kTokens], positions[kTokens];
  int32_t class_ends[kRunClasses];  // of the runs that are in `runs` so far
  uint16_t tokens[kTokens];         // its first token, and how many, as Pack has them
  uint16_t runs[2 * kTokens];       // sorted, by number
  uint8_t full_parts[kTokens];      // all parts but the last, which are at most 255
};

// One taker's items: of `takers` blocks, or clusters of blocks. Each taker finds the order of all
// items for itself. All lanes of a warp call it together.
//
// A group is up to step.group_tokens tokens of a row, which share items. It has two runs, each of
// items of one size: run g of group g is the last part of the context, and run groups + g the parts
// before, in order. The head blocks of a part follow each other, so that they read it from the L2
// together.
template <int kTokens>
class ItemOrder {
 public:
  __device__ ItemOrder(OrderShared<kTokens>& s, const Step& step, int32_t taker, int32_t takers)
      : s_(s), step_(step), taker_(taker), takers_(takers) {
    LoadTokens();
    FindGroups();
    if (sorted()) SortRuns();
  }

  // tokens = 0: there are no more. Every other turn goes back through the takers, so that who got
  // the largest item of one turn gets the smallest of the next.
  __device__ Item Next() {
    const int32_t index =
        turn_ * takers_ + (turn_ % 2 == 0 ? taker_ : takers_ - 1 - taker_);  // never falls
    ++turn_;
    if (index >= items_) return Item{.tokens = 0};
    while (index >= before_ + total_) NextRuns();
    const int32_t local = index - before_;
    const int lane = __ffs(static_cast<int>(__ballot_sync(kAllLanes, local < until_))) - 1;
    const int32_t run = __shfl_sync(kAllLanes, run_, lane);
    const int32_t in_run = local - __shfl_sync(kAllLanes, until_ - count_, lane);
    const int32_t group = GroupOf(run), position = s_.positions[group];
    return {.token = s_.tokens[group] / kMostGroup,
            .tokens = s_.tokens[group] % kMostGroup + 1,
            .position = position,
            .slot = s_.slots[group],
            .part_tokens = step_.PartTokens(position),
            .part = run < groups_ ? s_.full_parts[group] : in_run / step_.head_blocks,
            .head_block = in_run % step_.head_blocks};
  }

 private:
  static constexpr int kMostGroup = kPairs / kNarrowHeads;  // tokens
  struct Run {
    int32_t items;  // 0: there is no such run
    int32_t tiles;  // of each
  };

  // One trip to memory for each 256: what may be past the live tokens is looked at later.
  __device__ void LoadTokens() {
    constexpr int kTrip = kTokens < 256 ? kTokens : 256, kEach = kTrip / 32;
    for (int32_t begin = 0; begin < step_.tokens; begin += kTrip) {
      int32_t slots[kEach], positions[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int32_t token = begin + 32 * i + lane();
        const bool inside = token < step_.tokens;
        slots[i] = inside ? step_.slots[token] : 0;
        positions[i] = inside ? step_.positions[token] : 0;
      }
      live_ = max(0, step_.Live());
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        s_.slots[begin + 32 * i + lane()] = slots[i];
        s_.positions[begin + 32 * i + lane()] = positions[i];
      }
    }
    __syncwarp();
  }

  // The groups, which take the place of the tokens, and how many items there are.
  __device__ void FindGroups() {
    int32_t row_begin = 0, items = 0, most_full = 0;
    groups_ = 0;
    for (int32_t begin = 0; begin < live_; begin += 32) {
      const int32_t token = begin + lane();
      const bool live = token < live_;
      const bool begins_row = live && (token == 0 || !Continues(token - 1, token));
      const uint32_t rows = __ballot_sync(kAllLanes, begins_row) & (kAllLanes >> (31 - lane()));
      const int32_t row = rows == 0 ? row_begin : begin + 31 - __clz(static_cast<int>(rows));
      row_begin = __shfl_sync(kAllLanes, row, 31);
      const bool begins = live && (token - row) % step_.group_tokens == 0;
      int32_t tokens = 1, slot = 0, position = 0;
      if (begins) {
        while (tokens < step_.group_tokens && token + tokens < live_ &&
               Continues(token, token + tokens)) {
          ++tokens;
        }
        slot = s_.slots[token], position = s_.positions[token];
      }
      // No later token looks at those before its own but for the last of these 32, whose place
      // another group does not take.
      const uint32_t all = __ballot_sync(kAllLanes, begins);
      __syncwarp();
      if (begins) {
        const int32_t group = groups_ + __popc(all & ((1u << lane()) - 1));
        const int32_t full_parts = (position + tokens - 1) / step_.PartTokens(position);
        items += (full_parts + 1) * step_.head_blocks;
        most_full = max(most_full, full_parts);
        s_.slots[group] = slot, s_.positions[group] = position;
        s_.tokens[group] = static_cast<uint16_t>(token * kMostGroup + tokens - 1);
        s_.full_parts[group] = static_cast<uint8_t>(full_parts);
      }
      groups_ += __popc(all);
      __syncwarp();
    }
    items_ = __reduce_add_sync(kAllLanes, items);
    runs_ = __any_sync(kAllLanes, most_full > 0) ? 2 * groups_ : groups_;
  }

  // Whether `later` is of the same row as `token`, and its context cut in the same way.
  __device__ bool Continues(int32_t token, int32_t later) const {
    const int32_t position = s_.positions[token], later_position = s_.positions[later];
    return s_.slots[token] == s_.slots[later] && position + later - token == later_position &&
           step_.PartTokens(position) == step_.PartTokens(later_position);
  }

  // The order of items is only of use where some taker has several.
  __device__ bool sorted() const {
    return items_ > takers_;
  }

  // A counting sort. It is stable, and each round's ranks are those of lanes: all takers come to
  // the same list.
  __device__ void SortRuns() {
    for (int i = lane(); i < kRunClasses; i += 32) s_.class_ends[i] = 0;
    __syncwarp();
    for (int32_t run = lane(); run < runs_; run += 32) {
      const Run of = RunOf(run);
      if (of.items > 0) atomicAdd(&s_.class_ends[ClassOf(of)], 1);
    }
    __syncwarp();
    const int32_t runs = runs_;
    BeginClasses();
    for (int32_t begin = 0; begin < runs; begin += 32) {
      const int32_t run = begin + lane();
      const Run of = run < runs ? RunOf(run) : Run{};
      const int32_t its_class = of.items > 0 ? ClassOf(of) : kRunClasses;
      const uint32_t peers = __match_any_sync(kAllLanes, its_class);
      const int rank = __popc(peers & ((1u << lane()) - 1));
      const int32_t end = of.items > 0 ? s_.class_ends[its_class] : 0;
      __syncwarp();
      if (of.items > 0) {
        s_.runs[end + rank] = static_cast<uint16_t>(run);
        if (rank == 0) s_.class_ends[its_class] = end + __popc(peers);
      }
      __syncwarp();
    }
  }

  // Turns the number of each class's runs into that of all classes before.
  __device__ void BeginClasses() {
    static_assert(kRunClasses == 64);
    const int32_t even = s_.class_ends[2 * lane()], both = even + s_.class_ends[2 * lane() + 1];
    const int32_t end = SumUpToLane(both);
    s_.class_ends[2 * lane()] = end - both;
    s_.class_ends[2 * lane() + 1] = end - both + even;
    runs_ = __shfl_sync(kAllLanes, end, 31);
    __syncwarp();
  }

  __device__ static int32_t ClassOf(const Run& run) {
    return max(0, kRunClasses - run.tiles);
  }
  __device__ int32_t GroupOf(int32_t run) const {
    return run < groups_ ? run : run - groups_;
  }
  __device__ Run RunOf(int32_t run) const {
    const int32_t group = GroupOf(run), full = s_.full_parts[group];
    const int32_t position = s_.positions[group], part_tokens = step_.PartTokens(position);
    if (run >= groups_) return {full * step_.head_blocks, part_tokens / kKeys};
    const int32_t last = position + s_.tokens[group] % kMostGroup - full * part_tokens;
    return {step_.head_blocks, last / kKeys + 1};
  }

  // Looks at the next 32 runs, one a lane.
  __device__ void NextRuns() {
    before_ += total_;
    const int32_t at = begin_ + lane();
    begin_ += 32;
    run_ = at >= runs_ ? 0 : sorted() ? s_.runs[at] : at;
    count_ = at < runs_ ? RunOf(run_).items : 0;
    until_ = SumUpToLane(count_);
    total_ = __shfl_sync(kAllLanes, until_, 31);
  }

  // The sum of this and the lower lanes'.
  __device__ static int32_t SumUpToLane(int32_t sum) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int32_t lower = __shfl_up_sync(kAllLanes, sum, distance);
      if (lane() >= distance) sum += lower;
    }
    return sum;
  }
  __device__ static int lane() {
    return static_cast<int>(threadIdx.x % 32);
  }

  OrderShared<kTokens>& s_;
  const Step& step_;
  const int32_t taker_, takers_;
  int32_t live_, groups_;
  int32_t items_;                            // of all takers
  int32_t runs_;                             // that are listed
  int32_t turn_ = 0;                         // of Next
  int32_t begin_ = 0;                        // the first run after the 32 that lanes have
  int32_t before_ = 0, total_ = 0;           // items before these runs, and theirs
  int32_t run_ = 0, count_ = 0, until_ = 0;  // this lane's run, its items; and with lower lanes'
};

}  // namespace fathom::mla
