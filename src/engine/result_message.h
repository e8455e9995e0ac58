// What a step brought, as a message: from hosts whose ranks draw to the first one.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/executor.h"

namespace fathom {

std::string Serialize(const StepResult& result);             // msgpack
Result<StepResult> ParseStepResult(std::string_view bytes);  // kDataLoss for what is malformed

// For metrics; at most so many ranks.
std::string Serialize(const std::vector<RankStats>& ranks);
Result<std::vector<RankStats>> ParseRankStats(std::string_view bytes, int64_t most);

}  // namespace fathom
