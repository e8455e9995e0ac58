// generation_config.json: the sampling defaults of a model.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace fathom {

// Absent fields are absent from the file.
struct GenerationConfig {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;  // 0 or -1: no limit
  std::optional<int> max_new_tokens;
  std::vector<TokenId> eos;  // empty: those of config.json
  bool do_sample = true;     // false only where the file says so: greedy
};

// Token ids must be below `vocab_size`; numbers that make no sense are refused by name.
Result<GenerationConfig> ParseGenerationConfig(std::string_view json, int32_t vocab_size);

}  // namespace fathom
