// The published configurations, by name.
#pragma once

#include <string_view>

#include "base/status.h"
#include "checkpoint/model_config.h"

namespace fathom {

inline constexpr char kPresetNames[] = "v2-lite, v2, v3 (R1 and V3.1, too), v2-lite-mtp";

// The dimensions of DeepSeek-V2-Lite, V2 (and Coder-V2) or V3 (and R1), from the config.json of the
// published checkpoints. V3 stores FP8; the others BF16. v2-lite-mtp is V2-Lite with a draft layer
// as V3 has one, which nobody published: for measuring.
Result<ModelConfig> PresetConfig(std::string_view name);

}  // namespace fathom
