// Plans for one request without a scheduler, in rows and forms of the caller's choice: what is
// compared must be seen with every token in either form.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/attention_form.h"
#include "base/ids.h"
#include "request/params.h"
#include "scheduler/step_plan.h"

namespace fathom {

// The request has slot 0, and pages in falling order, so that a mix-up of page and position shows.
class OneRequest {
 public:
  OneRequest(std::shared_ptr<const RequestParams> params, int32_t num_pages)
      : params_(std::move(params)), num_pages_(num_pages) {}

  const RequestParams& params() const { return *params_; }
  int32_t length() const { return length_; }  // the next row's begin

  // The next step: a row of these tokens, which the caller knows, behind those before. The first
  // one opens the slot. REQUIRES: a token at least, and pages for all.
  StepPlan Next(AttentionForm form, std::span<const TokenId> tokens);

 private:
  std::shared_ptr<const RequestParams> params_;
  int32_t num_pages_;
  int32_t pages_planned_ = 0;
  int32_t length_ = 0;
  uint64_t steps_ = 0;
};

}  // namespace fathom
