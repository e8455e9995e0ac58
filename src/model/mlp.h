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

// What RunMoe does beside; one of the two.
struct BesideMoe {
  PairExchange* exchange = nullptr;  // if tokens travel to their experts (PairExchange::UsedBy)
  RmsNormArgs before, behind;        // norms: one that makes a.normed, and one of a.branch
};

// The sum of the shared experts and of the chosen ones, weighted; a.normed -> a.branch.
// DeepseekV2Moe.forward and DeepseekV3MoE.forward of transformers; the router (RouteArgs) is
// DeepseekV2TopkRouter.forward ("greedy": kGreedy, "group_limited_greedy": kGroupMax) and
// DeepseekV3TopkRouter.forward (kGroupTopTwoBiased).
void RunMoe(OpRunner& run, const ModelConfig& config, const MoeWeights& w, const Batch& batch,
            Activations& a, const BesideMoe& beside);

}  // namespace fathom
