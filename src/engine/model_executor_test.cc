// Requests through an engine with a model: what no part of it can show alone.
#include "engine/model_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <string>
#include <vector>

#include "base/test_folder.h"
#include "base/token_mask.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/testing.h"
#include "cpu/cpu_device.h"
#include "engine/engine.h"
#include "engine/ranked_executor.h"
#include "model/model.h"
#include "ops/sample/uniform.h"
#include "scheduler/one_request.h"

namespace fathom {
namespace {

std::vector<TokenId> Ids(const std::vector<int32_t>& ids) {
  std::vector<TokenId> tokens;
  for (const int32_t id : ids) tokens.push_back(TokenId{id});
  return tokens;
}

// The one token that each request asks for, in their order.
std::vector<GeneratedToken> FirstTokens(const std::string& folder,
                                        std::vector<GenerateRequest> requests) {
  auto checkpoint = Checkpoint::Open(folder);
  CHECK(checkpoint.ok(), "{}", checkpoint.status().message());
  CpuDevice device(1);
  constexpr int32_t kSlots = 8, kLength = 64;
  auto model = Model::Load(
      *checkpoint, CpuOps(Fp8Activations::kExact), device,
      {.max_tokens = 64, .max_rows = kSlots, .max_logit_vectors = kSlots, .max_model_len = kLength},
      nullptr);
  CHECK(model.ok(), "{}", model.status().message());
  const EngineOptions options{.scheduler = {.max_num_seqs = kSlots,
                                            .max_num_batched_tokens = 64,
                                            .prefill_chunk = 64,
                                            .num_pages = kSlots,
                                            .max_model_len = kLength,
                                            .absorbed_limit = kLength},
                              .max_queue = 1000};
  std::vector<GeneratedToken> tokens(requests.size());
  size_t ended = 0;
  std::promise<void> all;
  const SteadyClock clock;
  Engine engine(options,
                std::make_unique<ModelExecutor>(
                    **model, device, ModelExecutorOptions{.num_pages = kSlots, .slots = kSlots}),
                &clock, [&](std::vector<RequestOutput> outputs) {
                  for (RequestOutput& output : outputs) {
                    EXPECT_TRUE(output.error.ok()) << output.error.message();
                    if (output.tokens.size() == 1) tokens[Raw(output.id)] = output.tokens[0];
                    ended += output.finish.has_value();
                  }
                  if (ended == tokens.size()) all.set_value();
                });
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].id = RequestId{i};
    requests[i].max_tokens = 1;
    CHECK(engine.Submit(requests[i]).ok());
  }
  engine.Start();
  all.get_future().wait();
  return tokens;
}

// The place of a token decides its draw: a prompt of n tokens is followed by a token at n.
TEST(ModelExecutor, FirstTokenIsDrawnAtThePromptsLength) {
  std::vector<GenerateRequest> requests;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    GenerateRequest request;
    request.prompt = Ids({5, 6, 7, 8, 9});
    request.sampling = {.temperature = 2, .top_k = 2, .seed = seed, .logprobs = 2};
    requests.push_back(request);
  }
  const std::vector<GeneratedToken> tokens = FirstTokens("models/tiny-r1", requests);
  size_t differ = 0;
  for (uint32_t seed = 0; seed < tokens.size(); ++seed) {
    const auto& top = tokens[seed].logprobs->top;  // drawn from in this order
    const double first = std::exp(top[0].second / 2), second = std::exp(top[1].second / 2);
    const bool takes_first = first / (first + second) > SampleUniform(seed, 0, 5);
    EXPECT_EQ(tokens[seed].id, top[takes_first ? 0 : 1].first) << "seed " << seed;
    differ += tokens[seed].id != tokens[0].id;
  }
  EXPECT_GT(differ, 0u) << "the draws say nothing";
}

// Named tokens have the bits that they have among the likeliest, and a request beside those that
// name some, in the same step, has its own.
TEST(ModelExecutor, NamedTokensHaveTheBitsOfTheLikeliest) {
  GenerateRequest likeliest;
  likeliest.prompt = Ids({5, 6, 7, 8, 9});
  likeliest.sampling = {.temperature = 0, .logprobs = 20};
  const GeneratedToken alone = FirstTokens("models/tiny-r1", {likeliest})[0];
  GenerateRequest named = likeliest, other = likeliest;
  for (const auto& [id, logprob] : alone.logprobs->top) {
    named.sampling.logprob_token_ids.insert(named.sampling.logprob_token_ids.begin(), id);
  }
  other.prompt = Ids({300, 20});
  other.sampling.logprob_token_ids = Ids({1, 2, 3});
  const auto tokens = FirstTokens("models/tiny-r1", {other, named, likeliest});
  EXPECT_EQ(tokens[2].logprobs->top, alone.logprobs->top);
  EXPECT_EQ(tokens[1].logprobs->logprob, alone.logprobs->logprob);
  auto reversed = tokens[1].logprobs->top;
  std::reverse(reversed.begin(), reversed.end());
  EXPECT_EQ(reversed, alone.logprobs->top);
  ASSERT_EQ(tokens[0].logprobs->top.size(), 3u);
  EXPECT_NE(tokens[0].logprobs->top[0].second, tokens[0].logprobs->top[1].second);
}

// A CPU that never gets done with what it was given, as a GPU whose kernel waits forever.
class StuckDevice final : public CpuDevice {
 public:
  StuckDevice() : CpuDevice(1) {}
  bool Passed(uint64_t) override { return !status().ok(); }
};

TEST(ModelExecutor, GivesUpAStepThatDoesNotEndAndTellsOtherRanks) {
  const Checkpoint checkpoint = Checkpoint::Open("models/tiny-r1").value();
  StuckDevice device;
  const auto model = Model::Load(checkpoint, ReferenceOps(Fp8Activations::kExact), device,
                                 {.max_tokens = 8, .max_rows = 1, .max_model_len = 64}, nullptr)
                         .value();
  int told = 0;
  ModelExecutor executor(
      *model, device,
      {.num_pages = 1, .slots = 1, .step_timeout_s = 0.05, .on_failure = [&](const Status&) {
         ++told;
       }});
  RequestParams params;
  params.prompt = Ids({5, 6, 7});
  OneRequest request(std::make_shared<const RequestParams>(params), 1);
  executor.Submit({.groups = {request.Next(AttentionForm::kAbsorbed, params.prompt)}});
  const StepResult result = executor.Wait();
  EXPECT_EQ(result.status.message(), "step 0, of 1 row and 3 tokens, has not ended in 0.05 s");
  EXPECT_EQ(told, 1);
}

// A step waits for its masks behind its forward pass; the results of the step before, of which they
// are made, come out before them. Whoever gives up leaves a step without masks behind.
TEST(ModelExecutor, AStepWaitsForItsMasksAndTheOneBeforeDoesNot) {
  const Checkpoint checkpoint = Checkpoint::Open("models/tiny-r1").value();
  CpuDevice device(1);
  const auto model =
      Model::Load(checkpoint, CpuOps(Fp8Activations::kExact), device,
                  {.max_tokens = 8, .max_rows = 1, .max_logit_vectors = 1, .max_model_len = 64},
                  nullptr)
          .value();
  RankedExecutor executor = [&] {
    std::vector<std::vector<std::unique_ptr<Executor>>> groups(1);
    groups[0].push_back(std::make_unique<ModelExecutor>(
        *model, device, ModelExecutorOptions{.num_pages = 1, .slots = 1}));
    return RankedExecutor(std::move(groups));
  }();
  RequestParams params;
  params.prompt = Ids({5, 6, 7});
  OneRequest request(std::make_shared<const RequestParams>(params), 1);
  const auto submit = [&](bool masked) {
    StepPlan plan = request.Next(AttentionForm::kAbsorbed, params.prompt);
    plan.rows[0].samples = true;
    plan.rows[0].masked = masked;
    Widen(plan.shape, plan, /*logprobs=*/false);
    executor.Submit({.groups = {plan}});
    return plan.step;
  };
  submit(false);
  for (const TokenId only : Ids({300, 77})) {
    const uint64_t step = submit(true);
    EXPECT_EQ(executor.Wait().step, step - 1);  // though the next step is there
    std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(checkpoint.config().vocab_size)), 0);
    mask[static_cast<size_t>(Raw(only) / 32)] = 1U << (Raw(only) % 32);
    executor.SubmitMasks({{.step = step, .masks = {mask}}});
    const uint64_t next = submit(false);
    const StepResult result = executor.Wait();
    ASSERT_EQ(result.rows[0].tokens.size(), 1u);
    EXPECT_EQ(result.rows[0].tokens[0].id, only);
    EXPECT_EQ(result.step, next - 1);
  }
  submit(true);
}

// Log-probabilities of a small model with these edits of its config.json and these tensors.
std::vector<float> Logprobs(const std::string& tie,
                            const std::vector<testing::TestTensor>& tensors) {
  const TestFolder folder;
  testing::WriteModel(folder,
                      testing::SmallConfig({"quantization_config=", "num_nextn_predict_layers=0",
                                            "tie_word_embeddings=" + tie}),
                      tensors);
  GenerateRequest request;
  request.prompt = Ids({3, 4, 5});
  request.sampling = {.temperature = 0, .logprobs = 5};
  std::vector<float> logprobs;
  const std::vector<GeneratedToken> tokens = FirstTokens(folder.path(), {request});
  for (const auto& [id, logprob] : tokens[0].logprobs->top) {
    logprobs.push_back(static_cast<float>(Raw(id)));
    logprobs.push_back(logprob);
  }
  return logprobs;
}

// A head that is stored counts, whatever config.json says; without one the embedding is the head.
TEST(ModelExecutor, TiedEmbeddings) {
  const auto stored = testing::SmallModel(
      testing::SmallModelConfig({"quantization_config=", "num_nextn_predict_layers=0"}));
  auto without = stored, of_embedding = stored;
  testing::Remove(without, "lm_head.weight");
  testing::Named(of_embedding, "lm_head.weight").bytes =
      testing::Named(of_embedding, "model.embed_tokens.weight").bytes;
  const std::vector<float> untied = Logprobs("false", stored);
  EXPECT_EQ(Logprobs("true", stored), untied);
  const std::vector<float> tied = Logprobs("true", without);
  EXPECT_EQ(tied, Logprobs("false", of_embedding));
  EXPECT_NE(tied, untied);
}

}  // namespace
}  // namespace fathom
