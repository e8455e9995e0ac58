#include "step_work.h"

#include <cmath>

namespace fathom {
namespace {

// Norms, routers and their biases are fp32 on every device.
constexpr double kFloat = 4;

struct Tally {
  const WeightWidths& widths;
  double bytes = 0;
  double operations = 0;
  double linear_operations = 0;

  // A matrix of `weights` that `tokens` are multiplied with.
  void Matrix(double weights, double width, double tokens) {
    bytes += weights * width;
    operations += 2 * weights * tokens;
  }
  void Linear(double weights, double tokens) {
    Matrix(weights, widths.linear, tokens);
    linear_operations += 2 * weights * tokens;
  }
};

void AddAttention(const WorkShape& step, const ModelConfig& c, Tally& tally) {
  const double tokens = static_cast<double>(step.rows * step.tokens);
  const double hidden = c.hidden_size, heads = c.num_heads, latent = c.kv_lora_rank;
  const double rope = c.qk_rope_head_dim, nope = c.qk_nope_head_dim, vdim = c.v_head_dim;
  const double q = heads * (nope + rope);
  if (c.q_lora_rank > 0) {
    tally.Linear(c.q_lora_rank * hidden, tokens);
    tally.Linear(q * c.q_lora_rank, tokens);
  } else {
    tally.Linear(q * hidden, tokens);
  }
  tally.Linear((latent + rope) * hidden, tokens);
  tally.Linear(hidden * heads * vdim, tokens);
  tally.bytes += kFloat * (hidden + latent + c.q_lora_rank);  // norms

  const double rows = static_cast<double>(step.rows), n = static_cast<double>(step.tokens);
  const double pairs = rows * n * (step.context + (n + 1) / 2);  // of a query and a key it sees
  const double up = heads * latent * (nope + vdim);              // W_UK and W_UV
  if (step.absorbed) {
    tally.Matrix(up, tally.widths.absorbed, tokens);
    tally.operations += 2 * heads * (2 * latent + rope) * pairs;
  } else {
    tally.Linear(up, rows * (step.context + n));
    tally.operations += 2 * heads * (nope + rope + vdim) * pairs;
  }
}

void AddMlp(const WorkShape& step, const ModelConfig& c, int layer, Tally& tally) {
  const int64_t tokens = step.rows * step.tokens;
  const double hidden = c.hidden_size, expert = 3 * hidden * c.moe_intermediate_size;
  tally.bytes += kFloat * hidden;  // norm
  if (!c.IsMoeLayer(layer)) {
    tally.Linear(3 * hidden * c.intermediate_size, static_cast<double>(tokens));
    return;
  }
  tally.Matrix(c.n_routed_experts * hidden, kFloat, static_cast<double>(tokens));
  if (c.router.selection == RouterConfig::kGroupTopTwoBiased) {
    tally.bytes += kFloat * c.n_routed_experts;
  }
  tally.Linear(c.n_shared_experts * expert, static_cast<double>(tokens));
  const double drawn = step.experts > 0
                           ? step.experts
                           : ExpectedExperts(c.n_routed_experts, c.num_experts_per_tok, tokens);
  tally.bytes += drawn * expert * tally.widths.linear;
  const double of_experts = 2 * expert * static_cast<double>(c.num_experts_per_tok * tokens);
  tally.operations += of_experts;
  tally.linear_operations += of_experts;
}

void AddHead(const WorkShape& step, const ModelConfig& c, Tally& tally) {
  tally.bytes += kFloat * c.hidden_size;  // the final norm
  tally.Matrix(double{1} * c.vocab_size * c.hidden_size, tally.widths.head,
               static_cast<double>(step.rows * step.logit_vectors));
}

// With what so many layers read and write of the cache.
StepWork WorkOfLayers(const WorkShape& step, double layers, const Tally& tally,
                      const KvFormat& kv) {
  const double position = static_cast<double>(kv.page_bytes()) / kPageTokens;
  const double rows = static_cast<double>(step.rows), tokens = static_cast<double>(step.tokens);
  return {.weight_bytes = tally.bytes,
          .cache_read_bytes = layers * rows * step.context * position,
          .cache_written_bytes = layers * rows * tokens * position,
          .operations = tally.operations,
          .linear_operations = tally.linear_operations};
}

}  // namespace

double ExpectedExperts(int64_t experts, int64_t topk, int64_t tokens) {
  const double n = static_cast<double>(experts);
  return n * (1 - std::pow(1 - static_cast<double>(topk) / n, static_cast<double>(tokens)));
}

StepWork WorkOf(const WorkShape& step, const ModelConfig& config, const WeightWidths& widths,
                const KvFormat& kv) {
  const double tokens = static_cast<double>(step.rows * step.tokens);
  Tally tally{.widths = widths};
  tally.bytes += tokens * config.hidden_size * widths.embedding;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    AddAttention(step, config, tally);
    AddMlp(step, config, layer, tally);
  }
  AddHead(step, config, tally);
  return WorkOfLayers(step, config.num_layers, tally, kv);
}

StepWork WorkWithDrafts(WorkShape step, int64_t drafts, const ModelConfig& config,
                        const WeightWidths& widths, const KvFormat& kv) {
  step.tokens = step.logit_vectors = 1 + drafts;
  StepWork work = WorkOf(step, config, widths, kv);
  step.logit_vectors = 1;
  for (int64_t i = 0; i < drafts; ++i) {
    const double tokens = static_cast<double>(step.rows * step.tokens);
    const double hidden = config.hidden_size;
    Tally tally{.widths = widths};
    tally.bytes += tokens * hidden * widths.embedding + 2 * kFloat * hidden;  // and its norms
    tally.Linear(2 * hidden * hidden, tokens);                                // eh_proj
    AddAttention(step, config, tally);
    AddMlp(step, config, config.num_layers, tally);
    AddHead(step, config, tally);
    const StepWork layer = WorkOfLayers(step, 1, tally, kv);
    work.weight_bytes += layer.weight_bytes;
    work.cache_read_bytes += layer.cache_read_bytes;
    work.cache_written_bytes += layer.cache_written_bytes;
    work.operations += layer.operations;
    work.linear_operations += layer.linear_operations;
    step.context = i == 0 ? step.context + static_cast<double>(step.tokens) : step.context + 1;
    step.tokens = 1;
    step.experts = 0;
  }
  return work;
}

}  // namespace fathom
