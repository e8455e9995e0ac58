#include "engine/step_follower.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/result_message.h"

namespace fathom {

StepFollower::StepFollower(Hosts& hosts, std::map<uint32_t, std::unique_ptr<Executor>> groups,
                           int stages, SlotMaskRoom room)
    : hosts_(hosts), stages_(stages), room_(room) {
  for (auto& [number, executor] : groups) {
    Group& group = groups_[number];
    group.executor = std::move(executor);
    group.answers = std::thread([this, number = number, &group] {
      while (const std::optional<uint64_t> step = group.awaited.Pop()) {
        hosts_.Send(0, kResultMessage, OfGroup(number, Serialize(group.executor->Wait())));
        hosts_.Send(0, kRanksMessage, OfGroup(number, Serialize(group.executor->Ranks())));
      }
    });
  }
  hosts_.Listen([this](int, uint32_t kind, std::string bytes) { return Take(kind, bytes); });
}

StepFollower::~StepFollower() {
  hosts_.Listen([](int, uint32_t, std::string) { return Status(); });
  for (auto& [number, group] : groups_) {
    group.awaited.Close();
    // Steps on their way through the stages come to an end as others follow.
    for (int i = 1; i < stages_; ++i) {
      StepPlans follows;
      follows.groups.push_back({.step = ++group.last_step});
      group.executor->Submit(std::move(follows));
    }
    group.answers.join();
  }
}

Status StepFollower::Take(uint32_t kind, std::string_view bytes) {
  const GroupMessage of = TRY(SplitGroup(bytes));
  const auto group = groups_.find(of.group);
  if (group == groups_.end()) return DataLoss("no rank here is of group {}", of.group);
  switch (kind) {
    case kPlanMessage: return Run(group->second, TRY(ParseStepPlan(of.message)));
    case kMasksMessage: return TakeMasks(group->second, of.message);
    default: return DataLoss("a message of kind {}", kind);
  }
}

Status StepFollower::Run(Group& group, StepPlan plan) {
  if (plan.step <= group.last_step && group.last_step > 0) {
    return DataLoss("step {} after step {}", plan.step, group.last_step);
  }
  group.last_step = plan.step;
  const bool awaited = plan.shape.rows > 0;
  if (std::ranges::any_of(plan.rows, &StepRow::masked)) group.masked.push_back(plan);
  StepPlans plans;
  uint64_t step = plan.step;
  plans.groups.push_back(std::move(plan));
  group.executor->Submit(std::move(plans));
  if (awaited && !group.awaited.TryPush(std::move(step))) {
    return DataLoss("more steps than may be in flight");
  }
  return {};
}

Status StepFollower::TakeMasks(Group& group, std::string_view message) {
  if (group.masked.empty()) return DataLoss("masks of a step that has no masked row");
  std::vector<StepMasks> masks;
  masks.push_back(TRY(ParseStepMasks(message, group.masked.front(), room_)));
  group.masked.pop_front();
  group.executor->SubmitMasks(std::move(masks));
  return {};
}

}  // namespace fathom
