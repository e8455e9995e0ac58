// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).
#pragma once

#include "checkpoint/model_config.h"
#include "model/activations.h"
#include "model/batch.h"
#include "model/weights.h"
#include "ops/op_runner.h"

namespace fathom {

struct Rotary {
  TensorView cos_sin;  // F32 [max_positions, 2, rope / 2]
  float softmax_scale = 1;
};

// The longest row, in tokens, for which attending in latent space costs fewer operations than
// projecting the context up: l (n + v) / ((2 l + r) - (n + r + v)) with l, r, n, v the latent,
// rope, nope and value dimensions; 170 for 512/64/128/128.
int64_t AbsorbedRowLimit(const ModelConfig& config);

// Writes the tokens' latents to `pages` and attends; a.normed -> a.branch.
void Attend(OpRunner& run, const ModelConfig& config, const AttentionWeights& w, const Batch& batch,
            const Rotary& rotary, const KvPages& pages, Activations& a);

}  // namespace fathom
