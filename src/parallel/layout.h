// How a model is laid out over ranks, and which part of a dimension is whose.
#pragma once

#include <cstdint>

namespace fathom {

// Sizes of a model's groups of ranks.
struct ParallelLayout {
  int tensor = 1;    // heads, MLPs and vocabulary are cut over so many ranks
  int data = 1;      // groups of so many ranks each, which serve requests of their own
  int pipeline = 1;  // stages, each with so many ranks and some of the layers
  // Each routed expert is one rank's, of all groups; else each rank has a part of all of them.
  bool experts = false;
  bool bf16_residual = false;  // what stages hand on; else fp32, and the bits of one stage

  int world() const { return pipeline * stage_ranks(); }
  int stage_ranks() const { return data * tensor; }  // which experts lie over
  bool expert_parallel() const { return experts && stage_ranks() > 1; }
  // Several groups cut each expert between them.
  bool cuts_over_groups() const { return !experts && data > 1; }
  // Tokens travel to experts.
  bool exchanges_tokens() const { return expert_parallel() || cuts_over_groups(); }
  // Ranks follow each other by stage, then by group, then within it.
  int StageOf(int rank) const { return rank / stage_ranks(); }
  int GroupOf(int rank) const { return rank % stage_ranks() / tensor; }
};

// Elements [begin, end) of a dimension.
struct Share {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const Share&, const Share&) = default;
};

// Rank `rank`'s share of n elements: as many whole units as each other rank has, or one more, the
// earlier ranks first; the last unit may be cut short by n.
// REQUIRES: unit > 0, 0 <= rank < ranks.
Share ShareOf(int64_t n, int64_t unit, int ranks, int rank);

// What a dimension of weights is cut at: scale tiles of 128, or, where there are fewer of them than
// ranks, the largest power of two of which there are enough; 0 if n < ranks.
int64_t ShareUnit(int64_t n, int ranks);

}  // namespace fathom
