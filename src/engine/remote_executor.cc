#include "engine/remote_executor.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/host_messages.h"
#include "engine/result_message.h"
#include "scheduler/step_masks.h"

namespace fathom {

Status RemoteResults::Take(std::string_view message) {
  StepResult result = TRY(ParseStepResult(message));
  std::lock_guard lock(mutex_);
  if (results_.size() >= kMostInFlight) return DataLoss("results that nobody asked for");
  results_.push_back(std::move(result));
  changed_.notify_one();
  return {};
}

Status RemoteResults::TakeRanks(std::string_view message, int ranks_each) {
  std::vector<RankStats> ranks = TRY(ParseRankStats(message, ranks_each));
  const auto same = [](const RankStats& a, const RankStats& b) {
    return a.rank == b.rank && a.stage == b.stage;
  };
  std::lock_guard lock(mutex_);
  bool ours = ranks_.empty() || std::ranges::equal(ranks, ranks_, same);
  for (const RankStats& of : ranks) ours &= of.rank / ranks_each == host && of.group == group;
  if (!ours) return DataLoss("metrics of other ranks than its own");
  ranks_ = std::move(ranks);
  return {};
}

std::vector<RankStats> RemoteResults::Ranks() const {
  std::lock_guard lock(mutex_);
  return ranks_;
}

void RemoteResults::Fail(const Status& why) {
  std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = why;
  changed_.notify_one();
}

StepResult RemoteResults::Wait(uint64_t step, size_t rows) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !failure_.ok() || !results_.empty(); });
  StepResult failed{.step = step, .rows = {}, .status = failure_};
  if (!failure_.ok()) return failed;
  StepResult result = std::move(results_.front());
  results_.pop_front();
  if (!result.status.ok()) {
    failed.status = result.status;
  } else if (result.step != step) {
    failed.status = Internal("host {} is at step {}, the first one at {}", host, result.step, step);
  } else if (result.rows.size() != rows) {
    failed.status = Internal("host {} answers step {} with {} rows, which has {}", host, step,
                             result.rows.size(), rows);
  } else {
    return result;
  }
  return failed;
}

void RemoteExecutor::Submit(StepPlans plans) {
  CHECK(plans.groups.size() == 1);
  const StepPlan& plan = plans.groups.front();
  if (plan.shape.rows > 0) awaited_.push_back({plan.step, plan.rows.size()});
  Send(kPlanMessage, Serialize(plan));
}

void RemoteExecutor::SubmitMasks(std::vector<StepMasks> groups) {
  CHECK(groups.size() == 1);
  Send(kMasksMessage, Serialize(groups.front()));
}

StepResult RemoteExecutor::Wait() {
  CHECK(!awaited_.empty(), "no step of host {} is in flight", results_->host);
  const Awaited awaited = awaited_.front();
  awaited_.pop_front();
  return results_->Wait(awaited.step, awaited.rows);
}

void RemoteExecutor::Send(uint32_t kind, std::string_view message) {
  hosts_.Send(results_->host, kind, OfGroup(static_cast<uint32_t>(results_->group), message));
}

}  // namespace fathom
