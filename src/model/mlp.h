// The feed-forward half of a layer: dense, or a mixture of experts (DeepSeekMoE, arXiv:2401.06066).
#pragma once

#include "checkpoint/model_config.h"
#include "model/activations.h"
#include "model/batch.h"
#include "model/weights.h"
#include "ops/op_runner.h"

namespace fathom {

// down(silu(gate x) * up x); a.normed -> a.branch.
void RunMlp(OpRunner& run, const MlpWeights& w, const Batch& batch, Activations& a);

// The sum of the shared experts and of the chosen ones, weighted; a.normed -> a.branch.
void RunMoe(OpRunner& run, const ModelConfig& config, const MoeWeights& w, const Batch& batch,
            Activations& a);

}  // namespace fathom
