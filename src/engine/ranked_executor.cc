#include "engine/ranked_executor.h"

#include <utility>

#include "base/check.h"

namespace fathom {

void RankedExecutor::Submit(StepPlans plans) {
  for (size_t rank = 1; rank < ranks_.size(); ++rank) ranks_[rank]->Submit(plans);
  ranks_[0]->Submit(std::move(plans));
}

StepResult RankedExecutor::Wait() {
  StepResult first = ranks_[0]->Wait();
  for (size_t rank = 1; rank < ranks_.size(); ++rank) {
    const StepResult other = ranks_[rank]->Wait();
    CHECK(other.step == first.step, "rank {} is at step {}, the first at {}", rank, other.step,
          first.step);
    if (first.status.ok() && !other.status.ok()) first.status = other.status;
  }
  return first;
}

}  // namespace fathom
