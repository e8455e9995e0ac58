// What hosts other than the first say of a step: refused, or a result that writes itself the same
// again.
#include "engine/result_message.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto result = fathom::ParseStepResult(fathom::TextOf(data, size));
  if (!result.ok()) {
    CHECK(!result.status().message().empty());
    return 0;
  }
  const std::string written = fathom::Serialize(*result);
  const auto again = fathom::ParseStepResult(written);
  CHECK(again.ok() && fathom::Serialize(*again) == written, "a result is not read as written");
  return 0;
}
