// Rotary positions with YaRN, and the softmax scale that goes with it.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/model_config.h"

namespace fathom {

// [positions, 2, rope / 2]: cosines, then sines, of position * frequency, in fp32. YaRN (Peng et
// al. 2023, arXiv:2309.00071, section 3) interpolates the low frequencies; both are multiplied by
// g(factor, mscale) / g(factor, mscale_all_dim), or by g(factor, 1) when either is absent;
// g(s, m) = 0.1 m ln s + 1. DeepseekV3RotaryEmbedding.forward of transformers, of the frequencies
// of compute_default_rope_parameters or _compute_yarn_parameters; g is yarn_get_mscale. The
// rotation itself is in RotateAndCacheArgs.
std::vector<float> CosSinTable(const ModelConfig& config, int64_t positions);

// (nope + rope)^-1/2, times g(factor, mscale_all_dim)^2 where the checkpoint has mscale_all_dim:
// yarn_apply_mscale of transformers.
float SoftmaxScale(const ModelConfig& config);

}  // namespace fathom
