// The message that a step's masks are: refused, or masks that write themselves the same again.
#include "fuzz.h"
#include "scheduler/step_masks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr fathom::SlotMaskRoom kRoom = {.vocab = 70, .max_drafts = 2};
  const fathom::StepRow decode{.drafts = 2, .samples = true, .masked = true};
  const fathom::StepPlan plan{.step = 300, .rows = {decode, decode}};
  const auto masks = fathom::ParseStepMasks(fathom::TextOf(data, size), plan, kRoom);
  if (!masks.ok()) {
    CHECK(!masks.status().message().empty());
    return 0;
  }
  const std::string written = fathom::Serialize(*masks);
  const auto again = fathom::ParseStepMasks(written, plan, kRoom);
  CHECK(again.ok() && fathom::Serialize(*again) == written, "masks are not read as written");
  return 0;
}
