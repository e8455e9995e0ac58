// Whom each rank of a layout meets, and through what.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "parallel/communicator.h"
#include "parallel/layout.h"

namespace fathom {

// Of one rank; null where the layout needs none.
struct RankGroups {
  Communicator* tensor = nullptr;   // its tensor-parallel group
  Communicator* experts = nullptr;  // its stage's ranks, if tokens travel to their experts
  // Of these the group's first rank has what all of them are to have.
  Communicator* before = nullptr;  // the stage before, and it
  Communicator* after = nullptr;   // it, and the stage after
  Communicator* stages = nullptr;  // its place in every stage, the last stage first
};

// All ranks' communicators.
class JoinedRanks {
 public:
  // A group of these ranks, in this order.
  using MakeGroup =
      std::function<Result<std::vector<std::unique_ptr<Communicator>>>(std::span<const int> ranks)>;

  static Result<JoinedRanks> Join(const ParallelLayout& layout, const MakeGroup& make);

  const RankGroups& Of(int rank) const { return groups_[static_cast<size_t>(rank)]; }

 private:
  Status Add(std::vector<int> ranks, const MakeGroup& make,
             std::initializer_list<Communicator * RankGroups::*> as);

  std::vector<std::unique_ptr<Communicator>> owned_;
  std::vector<RankGroups> groups_;
};

}  // namespace fathom
