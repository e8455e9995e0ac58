// --speculative-config: who proposes drafts.
#pragma once

#include <string>

#include "base/status.h"
#include "speculation/speculation.h"

namespace fathom {

// A JSON object as vLLM's: {"method": "ngram", "num_speculative_tokens": 4}, with
// prompt_lookup_min and prompt_lookup_max (5 and 5; one alone is both).
// Without num_speculative_tokens there are as many as pay, up to Speculation::kAdaptsUpTo.
Result<Speculation> ParseSpeculation(const std::string& text);

}  // namespace fathom
