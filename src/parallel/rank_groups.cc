#include "parallel/rank_groups.h"

#include <numeric>
#include <utility>

namespace fathom {

// `as`: what the group is to each of the ranks; one for all of them if there is but one.
Status JoinedRanks::Add(std::vector<int> ranks, const MakeGroup& make,
                        std::initializer_list<Communicator * RankGroups::*> as) {
  std::vector<std::unique_ptr<Communicator>> members = TRY(make(ranks));
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto member = as.size() == 1 ? *as.begin() : as.begin()[i];
    groups_[static_cast<size_t>(ranks[i])].*member = members[i].get();
    if (members[i] != nullptr) members[i]->SetInLayout(ranks);
    owned_.push_back(std::move(members[i]));
  }
  return {};
}

Result<JoinedRanks> JoinedRanks::Join(const ParallelLayout& layout, const MakeGroup& make) {
  JoinedRanks joined;
  joined.groups_.resize(static_cast<size_t>(layout.world()));
  const int stage_ranks = layout.stage_ranks();
  const auto consecutive = [](int first, int count) {
    std::vector<int> ranks(static_cast<size_t>(count));
    std::iota(ranks.begin(), ranks.end(), first);
    return ranks;
  };
  for (int first = 0; first < layout.world() && layout.tensor > 1; first += layout.tensor) {
    TRY(joined.Add(consecutive(first, layout.tensor), make, {&RankGroups::tensor}));
  }
  for (int first = 0; first < layout.world() && layout.exchanges_tokens(); first += stage_ranks) {
    TRY(joined.Add(consecutive(first, stage_ranks), make, {&RankGroups::experts}));
  }
  for (int place = 0; place < stage_ranks && layout.pipeline > 1; ++place) {
    std::vector<int> stages;
    for (int stage = layout.pipeline - 1; stage >= 0; --stage) {
      const int rank = stage * stage_ranks + place;
      stages.push_back(rank);
      if (stage == 0) continue;
      TRY(joined.Add({rank - stage_ranks, rank}, make, {&RankGroups::after, &RankGroups::before}));
    }
    TRY(joined.Add(std::move(stages), make, {&RankGroups::stages}));
  }
  return joined;
}

}  // namespace fathom
