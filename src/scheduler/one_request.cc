#include "scheduler/one_request.h"

#include <utility>

#include "base/check.h"

namespace fathom {

StepPlan OneRequest::Next(AttentionForm form, std::span<const TokenId> tokens) {
  const int64_t end = length_ + static_cast<int64_t>(tokens.size());
  CHECK(!tokens.empty() && end <= int64_t{num_pages_} * kPageTokens,
        "a row [{}, {}) of a request with room for {}", length_, end, num_pages_ * kPageTokens);
  StepPlan plan{.step = steps_++};
  if (length_ == 0) {
    const auto prompt = static_cast<int32_t>(params_->prompt.size());
    plan.openings.push_back({.params = params_, .final_length = prompt + params_->max_tokens});
  }
  StepRow row{.form = form,
              .begin = length_,
              .tokens = {tokens.begin(), tokens.end()},
              .first_new_page = pages_planned_};
  for (; int64_t{pages_planned_} * kPageTokens < end; ++pages_planned_) {
    row.new_pages.push_back(PageId{num_pages_ - 1 - pages_planned_});
  }
  plan.rows.push_back(std::move(row));
  Widen(plan.shape, plan, /*logprobs=*/false);
  length_ = static_cast<int32_t>(end);
  return plan;
}

}  // namespace fathom
