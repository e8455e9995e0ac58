// What a step brought, as a message: from hosts whose ranks draw to the first one.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/executor.h"

namespace fathom {

std::string Serialize(const StepResult& result);             // msgpack
Result<StepResult> ParseStepResult(std::string_view bytes);  // kDataLoss for what is malformed

}  // namespace fathom
