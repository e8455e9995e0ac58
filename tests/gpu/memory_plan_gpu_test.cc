// Whether the published model fits, by the functions that size it; no GPU is needed.
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/presets.h"
#include "engine/assembly.h"
#include "model/activations.h"
#include "model/kv_pool.h"
#include "ops/attend_absorbed/mla_decode_cuda.h"
#include "ops/moe_experts/grouped_gemm_cuda.h"
#include "ops/ops.h"

namespace fathom {
namespace {

TEST(MemoryPlanGpuTest, FiveLayersOfV3AreServedByDefaultOnAnH200) {
  ModelConfig config = PresetConfig("v3").value();
  config.num_layers = 5;
  config.num_mtp_layers = 0;
  const Ops& ops = CudaHopperOps(Fp8Activations::kQuantized);
  EngineLimits limits;
  limits.FillDefaults(/*gpu=*/true);
  limits.max_model_len = config.max_position_embeddings;
  const int32_t tokens = limits.max_num_batched_tokens;
  ASSERT_EQ(tokens, 8192);
  const auto heads = static_cast<int32_t>(config.num_heads);
  const auto max_pages = static_cast<int32_t>(config.max_position_embeddings / kPageTokens);
  const size_t attention = MlaDecodeWorkspace(tokens, heads, max_pages,
                                              MlaDecodeSplitOf(heads, max_pages, /*fp8=*/false));
  EXPECT_LT(attention, size_t{2200} << 20);
  Fp8ExpertsParams experts{.tokens = tokens, .topk = 9};
  experts.gate_up.in = config.hidden_size;
  experts.down.in = config.moe_intermediate_size;
  experts.gate_up.count = experts.down.count = config.n_routed_experts + 1;
  const size_t tables = size_t{2} * sizeof(BF16) * config.vocab_size * config.hidden_size;
  ModelConfig without_tables = config;
  without_tables.vocab_size = 1;
  const ModelOptions model{.max_tokens = tokens,
                           .max_rows = limits.max_num_seqs,
                           .max_logit_vectors = limits.max_num_seqs,
                           .max_model_len = config.max_position_embeddings};
  const MemoryNeeds needs{
      .items = EngineNeeds({.weights = Checkpoint::Dummy(without_tables, 0).total_bytes() + tables,
                            .activations = Activations::Bytes(config, ops, {tokens, tokens}),
                            .runner = StepRunner::Bytes(config, model, limits.max_num_seqs, ops),
                            .workspace = std::max(attention, Fp8ExpertsWorkspace(experts))},
                           /*gpu=*/true),
      .page_bytes = MakeKvFormat(config, ops.kv_cache).page_bytes() * config.total_layers(),
      .max_model_len = limits.max_model_len,
      .max_num_seqs = limits.max_num_seqs,
      .memory_bytes = (int64_t{1398} << 30) / 10,
      .memory_is_ours = true};
  const auto plan = PlanMemory(needs);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_LE(plan->total_bytes(), needs.memory_bytes) << plan->ToString();
  EXPECT_GE(plan->num_pages * kPageTokens, 50 * needs.max_model_len) << plan->ToString();
}

}  // namespace
}  // namespace fathom
