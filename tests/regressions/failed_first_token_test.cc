// A request whose first token cannot be sampled (NaN logits) has a decode in flight by then, which
// embedded the token that the slot was opened with: -1, and the process ended.
#include <gtest/gtest.h>

#include <future>
#include <map>

#include "checkpoint/checkpoint.h"
#include "cpu/cpu_device.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "model/model.h"

namespace fathom {
namespace {

TEST(FailedFirstToken, EndsItsRequestAndNoOther) {
  auto checkpoint = Checkpoint::Open("models/tiny-r1");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  CpuDevice device(1);
  constexpr int32_t kLength = 256;
  const ModelOptions sizes{
      .max_tokens = 64, .max_rows = 2, .max_logit_vectors = 2, .max_model_len = kLength};
  auto model = Model::Load(*checkpoint, CpuOps(Fp8Activations::kExact), device, sizes, nullptr);
  ASSERT_TRUE(model.ok()) << model.status().message();
  constexpr int32_t kPages = 2 * kLength / kPageTokens;
  const EngineOptions options{.scheduler = {.max_num_seqs = 2,
                                            .max_num_batched_tokens = 64,
                                            .prefill_chunk = 64,
                                            .num_pages = kPages,
                                            .max_model_len = kLength,
                                            .absorbed_limit = kLength}};
  std::map<RequestId, RequestOutput> last;
  std::promise<void> ended;
  const SteadyClock clock;
  Engine engine(options,
                std::make_unique<ModelExecutor>(
                    **model, device, ModelExecutorOptions{.num_pages = kPages, .slots = 2}),
                &clock, [&](std::vector<RequestOutput> outputs) {
                  for (RequestOutput& output : outputs) {
                    if (output.finish) last[output.id] = std::move(output);
                  }
                  if (last.size() == 2) ended.set_value();
                });
  for (const float penalty : {1.0f, 1e-40f}) {
    GenerateRequest request;
    request.id = RequestId{penalty == 1.0f ? 1u : 2u};
    request.prompt = {TokenId{5}, TokenId{6}, TokenId{7}};
    request.max_tokens = 4;
    request.sampling.temperature = 0;
    request.sampling.repetition_penalty = penalty;  // out of its range: makes logits infinite
    ASSERT_TRUE(engine.Submit(request).ok());
  }
  engine.Start();
  ended.get_future().wait();
  EXPECT_TRUE(last[RequestId{1}].error.ok()) << last[RequestId{1}].error.message();
  EXPECT_EQ(last[RequestId{2}].error.code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace fathom
