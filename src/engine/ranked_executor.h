// The ranks of a model as one executor: each gets the same steps, and comes to the same tokens.
#pragma once

#include <memory>
#include <vector>

#include "engine/executor.h"

namespace fathom {

class RankedExecutor final : public Executor {
 public:
  explicit RankedExecutor(std::vector<std::unique_ptr<Executor>> ranks)
      : ranks_(std::move(ranks)) {}

  void Submit(StepPlans plans) override;
  // The first rank's result, once all ranks have the step behind them; of a step that failed on any
  // rank, that one's status. A rank that fails must see to it that no other waits for it
  // (ModelExecutorOptions::on_failure).
  StepResult Wait() override;

 private:
  std::vector<std::unique_ptr<Executor>> ranks_;
};

}  // namespace fathom
