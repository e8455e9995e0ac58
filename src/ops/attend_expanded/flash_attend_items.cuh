// What blocks of expanded attention compute, and in which order: items of some tokens of a row and
// a head, handed out one by one. A warp of its own finds them (FindItems), and leaves in shared
// memory what the others need to know.
#pragma once

#include "cuda/warp.h"
#include "ops/attend_expanded/flash_attend_step.h"

namespace fathom::flash {

// Keys and values of so many positions times heads fit into the L2 (512 bytes each, 32 MiB): heads
// whose items run together.
constexpr int32_t kPositionsAtOnce = 65536;

struct Item {
  int32_t first;  // whether the piece is the row's first
  int32_t token, head;
  int32_t at;    // of the piece, among keys and values
  int32_t most;  // positions of the piece that some token sees; 0: there are no more items
};

template <int kGroups>
struct ItemBuffer {
  Item item;
  int32_t seen[kGroups * kTokensOfGroup];  // of each token
  int32_t most[kGroups];                   // of each warpgroup's
};

__device__ __forceinline__ int32_t Tiles(int32_t seen) {
  return (seen + kKeys - 1) / kKeys;
}

// Of the piece's positions, how many a token sees.
__device__ __forceinline__ int32_t SeenBy(const Step& step, const ContextPiece& piece, int32_t t) {
  if (t >= piece.token_begin + piece.tokens) return 0;
  return max(0, min(piece.count, step.positions[t] - piece.begin + 1));
}

// Goes through a launch's items: a piece after the other; of a piece some heads at a time, whose
// keys and values the L2 holds; of those, the last tokens first: they see most. A warp, all lanes.
template <int kGroups>
class Items {
 public:
  __device__ explicit Items(const Step& step)
      : step_(step),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        index_(static_cast<int32_t>(blockIdx.x)) {}

  // The block's next item of which something is visible, or one without.
  __device__ Item Next(ItemBuffer<kGroups>& buffer) {
    while (index_ < step_.items) {
      uint32_t count = 0;
      if (lane_ == 0) count = atomicAdd(step_.handed_out, 1);
      const Item item = Describe(index_, buffer);
      // The last of those who hear that there is none left makes ready for the next kernel.
      if (lane_ == 0 && count + 1 == static_cast<uint32_t>(step_.items)) *step_.handed_out = 0;
      index_ = static_cast<int32_t>(gridDim.x + __shfl_sync(kAllLanes, count, 0));
      if (item.most > 0) return item;
    }
    if (lane_ == 0) buffer.item.most = 0;
    return {};
  }

 private:
  static constexpr int kTokens = kGroups * kTokensOfGroup;

  __device__ static int32_t BlocksOf(const ContextPiece& piece) {
    return (piece.tokens + kTokens - 1) / kTokens;
  }

  __device__ Item Describe(int32_t index, ItemBuffer<kGroups>& buffer) {
    int32_t count;
    while (index >= before_ + (count = BlocksOf(step_.pieces.of[piece_]) * step_.heads)) {
      before_ += count;
      ++piece_;
    }
    const ContextPiece& piece = step_.pieces.of[piece_];
    const int32_t blocks = BlocksOf(piece), local = index - before_;
    const int32_t at_once = max(1, kPositionsAtOnce / max(piece.count, 1));
    const int32_t first_head = local / (at_once * blocks) * at_once;
    const int32_t heads = min(at_once, step_.heads - first_head);
    const int32_t rest = local - first_head * blocks;
    Item item = {.first = piece.begin == 0,
                 .token = piece.token_begin + (blocks - 1 - rest / heads) * kTokens,
                 .head = first_head + rest % heads,
                 .at = piece.at,
                 .most = 0};
    item.most = Look(piece, item.token, buffer);
    if (lane_ == 0) buffer.item = item;
    return item;
  }

  // Writes down what the item's tokens see; answers the most.
  __device__ int32_t Look(const ContextPiece& piece, int32_t token, ItemBuffer<kGroups>& buffer) {
    int32_t most = 0;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int at = group * kTokensOfGroup + lane_;
      const int32_t low = SeenBy(step_, piece, token + at);
      const int32_t high = SeenBy(step_, piece, token + at + kWarp);
      buffer.seen[at] = low;
      buffer.seen[at + kWarp] = high;
      const int32_t of_group = __reduce_max_sync(kAllLanes, max(low, high));
      if (lane_ == 0) buffer.most[group] = of_group;
      most = max(most, of_group);
    }
    return most;
  }

  const Step& step_;
  const int lane_;
  int32_t index_;
  int32_t piece_ = 0, before_ = 0;  // of the last item: its piece, and the items before that one
};

}  // namespace fathom::flash
