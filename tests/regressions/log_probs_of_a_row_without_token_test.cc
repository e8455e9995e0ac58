// A row whose logits hold NaN has no token: -1. On CPUs log_probs took that for a bug and ended the
// process, if that request or another one of its step wanted log-probabilities.
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <map>
#include <string>

#include "checkpoint/checkpoint.h"
#include "cpu/cpu_device.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "model/model.h"

namespace fathom {
namespace {

struct Case {
  const char* name;
  int32_t of_broken, of_sound;  // log-probabilities that the two requests want; -1: none
};

class LogProbsOfARowWithoutToken : public testing::TestWithParam<Case> {};

TEST_P(LogProbsOfARowWithoutToken, EndsItsRequestAndNoOther) {
  auto checkpoint = Checkpoint::Open("models/tiny-r1");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  CpuDevice device(1);
  constexpr int32_t kLength = 64, kPages = 2;
  const ModelOptions sizes{
      .max_tokens = 64, .max_rows = 2, .max_logit_vectors = 2, .max_model_len = kLength};
  auto model = Model::Load(*checkpoint, CpuOps(Fp8Activations::kExact), device, sizes, nullptr);
  ASSERT_TRUE(model.ok()) << model.status().message();
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
  for (const bool broken : {false, true}) {
    GenerateRequest request;
    request.id = RequestId{broken ? 2u : 1u};
    request.prompt = {TokenId{5}, TokenId{6}, TokenId{7}};
    request.max_tokens = 1;
    request.sampling.temperature = 0;
    if (broken) request.sampling.repetition_penalty = 1e-40f;  // makes logits infinite
    request.sampling.logprobs = broken ? GetParam().of_broken : GetParam().of_sound;
    ASSERT_TRUE(engine.Submit(request).ok());
  }
  engine.Start();
  ended.get_future().wait();
  EXPECT_EQ(last[RequestId{2}].error.code(), StatusCode::kInternal);
  const RequestOutput& sound = last[RequestId{1}];
  ASSERT_TRUE(sound.error.ok()) << sound.error.message();
  ASSERT_EQ(sound.tokens.size(), 1u);
  if (GetParam().of_sound < 0) return;
  ASSERT_TRUE(sound.tokens[0].logprobs);
  EXPECT_LE(sound.tokens[0].logprobs->logprob, 0);
  EXPECT_EQ(sound.tokens[0].logprobs->top.at(0).first, sound.tokens[0].id);  // greedy
}

INSTANTIATE_TEST_SUITE_P(All, LogProbsOfARowWithoutToken,
                         testing::Values(Case{"Own", 0, -1}, Case{"Company", -1, 1}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fathom
