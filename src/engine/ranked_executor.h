// The ranks of a model as one executor: each gets its group's part of every step, and those of a
// group come to the same tokens.
#pragma once

#include <memory>
#include <vector>

#include "engine/executor.h"

namespace fathom {

class RankedExecutor final : public Executor {
 public:
  // Of each data-parallel group its ranks, the last of which say what was drawn.
  explicit RankedExecutor(std::vector<std::vector<std::unique_ptr<Executor>>> groups)
      : groups_(std::move(groups)) {}

  void Submit(StepPlans plans) override;  // REQUIRES: a part for each group
  void SubmitMasks(std::vector<StepMasks> groups) override;
  // The rows of each group's last rank, once all ranks have the step behind them; of a step that
  // failed on any rank, that one's status. A rank that fails must see to it that no other waits for
  // it (ModelExecutorOptions::on_failure).
  StepResult Wait() override;
  std::vector<RankStats> Ranks() const override;  // in the order of ranks

 private:
  std::vector<std::vector<std::unique_ptr<Executor>>> groups_;
};

}  // namespace fathom
