// The feed-forward half of a layer: dense (SwiGLU, arXiv:2002.05202), or a mixture of experts
// (DeepSeekMoE, arXiv:2401.06066; DeepSeek-V2, section 2.2; DeepSeek-V3, section 2.1.2).
#pragma once

#include "checkpoint/model_config.h"
#include "model/activations.h"
#include "model/batch.h"
#include "model/expert_exchange.h"
#include "model/weights.h"
#include "ops/op_runner.h"

namespace fathom {

// down(silu(gate x) * up x); a.normed -> a.branch. DeepseekV2MLP.forward and DeepseekV3MLP.forward
// of transformers.
void RunMlp(OpRunner& run, const MlpWeights& w, const Batch& batch, Activations& a);

// The sum of the shared experts and of the chosen ones, weighted; a.normed -> a.branch.
// DeepseekV2Moe.forward and DeepseekV3MoE.forward of transformers; the router (RouteArgs) is
// DeepseekV2TopkRouter.forward ("greedy": kGreedy, "group_limited_greedy": kGroupMax) and
// DeepseekV3TopkRouter.forward (kGroupTopTwoBiased).
// `exchange`: if tokens travel to their experts (PairExchange::UsedBy), else null.
void RunMoe(OpRunner& run, const ModelConfig& config, const MoeWeights& w, const Batch& batch,
            Activations& a, PairExchange* exchange);

}  // namespace fathom
