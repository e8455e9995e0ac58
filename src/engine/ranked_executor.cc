#include "engine/ranked_executor.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace fathom {
namespace {

StepPlans OneGroup(StepPlan part) {
  StepPlans plans;
  plans.groups.push_back(std::move(part));
  return plans;
}

}  // namespace

void RankedExecutor::Submit(StepPlans plans) {
  CHECK(plans.groups.size() == groups_.size(), "a step of {} groups for {}", plans.groups.size(),
        groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t rank = 1; rank < groups_[g].size(); ++rank) {
      groups_[g][rank]->Submit(OneGroup(plans.groups[g]));
    }
    groups_[g][0]->Submit(OneGroup(std::move(plans.groups[g])));
  }
}

void RankedExecutor::SubmitMasks(std::vector<StepMasks> groups) {
  CHECK(groups.size() == groups_.size(), "masks of {} groups for {}", groups.size(),
        groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups[g].masks.empty()) continue;
    for (size_t rank = 1; rank < groups_[g].size(); ++rank) {
      groups_[g][rank]->SubmitMasks({groups[g]});
    }
    groups_[g][0]->SubmitMasks({std::move(groups[g])});
  }
}

StepResult RankedExecutor::Wait() {
  StepResult all;
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t rank = 0; rank < groups_[g].size(); ++rank) {
      StepResult other = groups_[g][rank]->Wait();
      if (g == 0 && rank == 0) all.step = other.step;
      if (all.status.ok() && !other.status.ok()) all.status = other.status;
      CHECK(!all.status.ok() || other.step == all.step,
            "rank {} of group {} is at step {}, the first at {}", rank, g, other.step, all.step);
      if (rank + 1 < groups_[g].size()) continue;
      std::move(other.rows.begin(), other.rows.end(), std::back_inserter(all.rows));
    }
  }
  return all;
}

std::vector<RankStats> RankedExecutor::Ranks() const {
  std::vector<RankStats> all;
  for (const auto& group : groups_) {
    for (const auto& member : group) std::ranges::move(member->Ranks(), std::back_inserter(all));
  }
  std::ranges::sort(all, {}, &RankStats::rank);
  return all;
}

}  // namespace fathom
