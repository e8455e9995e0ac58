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
       .x_quantized = First(run.ops(), a.normed_quantized, batch.tokens, w.gate_up.weight.get()),
       .gate_up = w.gate_up.weight.get(),
       .down = w.down.weight.get(),
       .live = batch.map.live,
       .out = First(a.branch, batch.tokens)});
}

namespace {

// A model's experts, of one layer.
struct Experts {
  OpRunner& run;
  const ModelConfig& config;
  const MoeWeights& w;
  Activations& a;

  // With the router's choice for them.
  RoutedTokens Route(const TensorView& x, const TensorView& live, const TensorView& out,
                     const RmsNormArgs& norm = {}) const {
    const int64_t tokens = x.dim(0), topk = config.num_experts_per_tok;
    const TensorView routed = First(a.expert_ids, tokens);
    const TensorView weights = First(a.expert_weights, tokens);
    run(run.ops().route, {.x = x,
                          .norm = norm,
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
    return {x, synthetic.absent() ? routed : First(synthetic, tokens), weights, live, out};
  }

  // Sums what this rank has of the tokens' experts, `shared` of which all tokens have.
  void Compute(const RoutedTokens& tokens, int64_t shared = 0, const RmsNormArgs& norm = {}) const {
    run(run.ops().moe_experts, {.x = tokens.x,
                                .ids = tokens.ids,
                                .shared = shared,
                                .weights = tokens.weights,
                                .gate_up = w.gate_up.weight.get(),
                                .down = w.down.weight.get(),
                                .live = tokens.live,
                                .out = tokens.out,
                                .norm = norm});
  }
};

}  // namespace

void RunMoe(OpRunner& run, const ModelConfig& config, const MoeWeights& w, const Batch& batch,
            Activations& a, const BesideMoe& beside) {
  const Experts experts{run, config, w, a};
  const TensorView x = First(a.normed, batch.tokens), out = First(a.branch, batch.tokens);
  const TensorView live = batch.map.live;
  PairExchange* const exchange = beside.exchange;
  if (exchange == nullptr) {
    experts.Compute(experts.Route(x, live, out, beside.before), config.n_shared_experts,
                    beside.behind);
  } else if (exchange->cut()) {
    // A router is every rank's: each chooses anew for the tokens that it has been sent.
    exchange->Run(run, exchange->ToAllRanks(x, live, out), batch.step_tokens,
                  [&](const RoutedTokens& sent) {
                    experts.Compute(experts.Route(sent.x, sent.live, sent.out));
                  });
  } else {
    exchange->Run(run, experts.Route(x, live, out), batch.step_tokens,
                  [&](const RoutedTokens& pairs) { experts.Compute(pairs); });
  }
}

}  // namespace fathom
