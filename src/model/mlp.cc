#include "model/mlp.h"

namespace fathom {
namespace {

RouterScoring ToOps(RouterConfig::Scoring scoring) {
  return scoring == RouterConfig::kSigmoid ? RouterScoring::kSigmoid : RouterScoring::kSoftmax;
}

RouterSelection ToOps(RouterConfig::Selection selection) {
  switch (selection) {
    case RouterConfig::kGreedy: return RouterSelection::kGreedy;
    case RouterConfig::kGroupMax: return RouterSelection::kGroupMax;
    case RouterConfig::kGroupTopTwoBiased: return RouterSelection::kGroupTopTwoBiased;
  }
  CHECK(false, "unknown router");
}

}  // namespace

void RunMlp(OpRunner& run, const MlpWeights& w, const Batch& batch, Activations& a) {
  run(run.ops().mlp,
      {.x = First(a.normed, batch.tokens),
       .x_quantized = First(a.normed_quantized, batch.tokens, w.gate_up.weight.get()),
       .gate_up = w.gate_up.weight.get(),
       .down = w.down.weight.get(),
       .live = batch.map.live,
       .out = First(a.branch, batch.tokens)});
}

void RunMoe(OpRunner& run, const ModelConfig& config, const MoeWeights& w, const Batch& batch,
            Activations& a, PairExchange* exchange) {
  const Ops& ops = run.ops();
  const int64_t tokens = batch.tokens, topk = config.num_experts_per_tok;
  const TensorView live = batch.map.live, normed = First(a.normed, tokens);
  const TensorView routed = First(a.expert_ids, tokens);
  const TensorView weights = First(a.expert_weights, tokens);
  run(ops.route, {.x = normed,
                  .gate = w.gate.view,
                  .bias = w.bias.view,
                  .scoring = ToOps(config.router.scoring),
                  .selection = ToOps(config.router.selection),
                  .n_group = config.router.n_group,
                  .topk_group = config.router.topk_group,
                  .norm_topk_prob = config.router.norm_topk_prob,
                  .scaling = config.router.routed_scaling_factor,
                  .live = live,
                  .ids = routed.Slice(1, 0, topk),  // behind them: the shared experts
                  .weights = weights.Slice(1, 0, topk)});
  const TensorView& synthetic = w.synthetic_ids.view;
  const TensorView ids = synthetic.absent() ? routed : First(synthetic, tokens);
  if (exchange != nullptr) {
    return exchange->Run(run, w, {normed, ids, weights, live, First(a.branch, tokens)},
                         batch.step_tokens);
  }
  run(ops.moe_experts, {.x = normed,
                        .ids = ids,
                        .weights = weights,
                        .gate_up = w.gate_up.weight.get(),
                        .down = w.down.weight.get(),
                        .live = live,
                        .out = First(a.branch, tokens)});
}

}  // namespace fathom
