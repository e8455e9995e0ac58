// The feed-forward half of a layer: dense, or a mixture of experts (DeepSeekMoE, arXiv:2401.06066).
#pragma once

#include "checkpoint/model_config.h"
#include "model/activations.h"
#include "model/batch.h"
#include "model/weights.h"
#include "ops/op_runner.h"

namespace fathom {

// down(silu(gate x) * up x); a.normed -> out.
void RunMlp(OpRunner& run, const MlpWeights& w, const Batch& batch, Activations& a,
            const TensorView& out);

// The routed experts' weighted sum; a.normed -> a.branch. What shared experts add -> a.shared.
void RunMoe(OpRunner& run, const ModelConfig& config, const MoeWeights& w, const Batch& batch,
            Activations& a);

}  // namespace fathom
