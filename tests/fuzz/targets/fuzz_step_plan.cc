// The message that a step is: refused, or a plan that writes itself the same again.
#include "fuzz.h"
#include "scheduler/step_plan.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto plan = fathom::ParseStepPlan(fathom::TextOf(data, size));
  if (!plan.ok()) {
    CHECK(!plan.status().message().empty());
    return 0;
  }
  const std::string written = fathom::Serialize(*plan);
  const auto again = fathom::ParseStepPlan(written);
  CHECK(again.ok() && fathom::Serialize(*again) == written, "a plan is not read as it is written");
  return 0;
}
