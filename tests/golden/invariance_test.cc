// A token's result is a function of its request alone: the same bits alone and in company, for
// every token budget, number of slots and number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "base/rng.h"
#include "base/under_sanitizer.h"
#include "checkpoint/checkpoint.h"
#include "cpu/cpu_device.h"
#include "cpu/cpu_features.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "model/model.h"

namespace fathom {
namespace {

constexpr int32_t kChunk = 256;
constexpr int32_t kMaxModelLen = 1280;

struct Setting {
  int32_t budget = 1024;
  int32_t slots = 32;
  int threads = 2;
  const Ops* ops = &CpuOps(Fp8Activations::kExact);
  std::optional<DType> kv_cache = {};
};

// Every table, and the default one with an FP8 cache.
std::vector<Setting> Tables() {
  return {{},
          {.kv_cache = DType::kF8E4M3},
          {.ops = &CpuOps(Fp8Activations::kQuantized)},
          {.ops = &CpuBF16Ops()},
          {.ops = &CpuIntegerOps(WeightFormat::kInt8)},
          {.ops = &CpuIntegerOps(WeightFormat::kInt4)}};
}

std::vector<Setting> FewerUnderSanitizer(std::vector<Setting> tables) {
  if (kUnderSanitizer) tables.resize(1);
  return tables;
}

// Collects outputs until every request has ended.
class Collector {
 public:
  void Take(std::vector<RequestOutput> outputs) {
    std::lock_guard lock(mutex_);
    for (RequestOutput& output : outputs) {
      auto& tokens = tokens_[output.id];
      for (GeneratedToken& token : output.tokens) tokens.push_back(std::move(token));
      if (!output.finish) continue;
      EXPECT_TRUE(output.error.ok()) << output.error.message();
      ++ended_;
    }
    changed_.notify_one();
  }
  std::map<RequestId, std::vector<GeneratedToken>> WaitFor(size_t requests) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ == requests; });
    return std::move(tokens_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, std::vector<GeneratedToken>> tokens_;
  size_t ended_ = 0;
};

using Results = std::map<RequestId, std::vector<GeneratedToken>>;

// Runs the requests together.
Results RunAll(const Setting& setting, const std::vector<GenerateRequest>& requests) {
  auto checkpoint = Checkpoint::Open("models/tiny-r1");
  CHECK(checkpoint.ok(), "{}", checkpoint.status().message());
  CpuDevice device(setting.threads);
  auto model = Model::Load(*checkpoint, *setting.ops, device,
                           {.max_tokens = setting.budget,
                            .max_rows = setting.slots,
                            .max_logit_rows = setting.slots,
                            .max_model_len = kMaxModelLen,
                            .kv_cache = setting.kv_cache},
                           nullptr);
  CHECK(model.ok(), "{}", model.status().message());
  const SteadyClock clock;
  Collector collector;
  const int32_t pages = setting.slots * kMaxModelLen / kPageTokens;
  const EngineOptions options{.scheduler = {.max_num_seqs = setting.slots,
                                            .max_num_batched_tokens = setting.budget,
                                            .prefill_chunk = kChunk,
                                            .num_pages = pages,
                                            .max_model_len = kMaxModelLen}};
  Engine engine(
      options,
      std::make_unique<ModelExecutor>(
          **model, device, ModelExecutorOptions{.num_pages = pages, .slots = setting.slots}),
      &clock, [&](std::vector<RequestOutput> o) { collector.Take(std::move(o)); });
  for (const GenerateRequest& request : requests) {
    const Status status = engine.Submit(request);
    CHECK(status.ok(), "{}", status.message());
  }
  engine.Start();
  return collector.WaitFor(requests.size());
}

// Prompts of 1 to 900 tokens (absorbed and expanded rows, chunk and page borders), greedy and
// sampled.
std::vector<GenerateRequest> MakeRequests() {
  constexpr int kLengths[] = {1,   2,   63,  64,  65,  127, 128, 129, 170, 171, 172,
                              255, 256, 257, 300, 426, 427, 511, 512, 513, 3,   17,
                              31,  40,  900, 90,  5,   33,  20,  10,  7,   77};
  Rng rng(7);
  std::vector<GenerateRequest> requests;
  for (int length : kLengths) {
    GenerateRequest request;
    request.id = RequestId{requests.size() + 1};
    for (int i = 0; i < length; ++i) {
      request.prompt.push_back(TokenId{static_cast<int32_t>(rng.Below(4000))});
    }
    request.max_tokens = 6;
    request.sampling.temperature = requests.size() % 2 == 0 ? 0.0f : 0.8f;
    request.sampling.top_p = requests.size() % 4 == 1 ? 0.9f : 1.0f;
    request.sampling.repetition_penalty = requests.size() % 3 == 0 ? 1.2f : 1.0f;
    request.sampling.seed = requests.size();
    request.sampling.logprobs = 3;
    requests.push_back(std::move(request));
  }
  if (kUnderSanitizer) std::erase_if(requests, [](const auto& r) { return Raw(r.id) % 4 != 1; });
  return requests;
}

void ExpectSameBits(const Results& a, const Results& b) {
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  for (const auto& [id, tokens] : b) {
    const auto& others = a.at(id);
    ASSERT_EQ(tokens.size(), others.size()) << "request " << Raw(id);
    for (size_t i = 0; i < tokens.size(); ++i) {
      ASSERT_EQ(tokens[i].id, others[i].id) << "request " << Raw(id) << ", token " << i;
      EXPECT_EQ(bits(tokens[i].logprobs->logprob), bits(others[i].logprobs->logprob));
      for (size_t j = 0; j < tokens[i].logprobs->top.size(); ++j) {
        EXPECT_EQ(tokens[i].logprobs->top[j].first, others[i].logprobs->top[j].first);
        EXPECT_EQ(bits(tokens[i].logprobs->top[j].second), bits(others[i].logprobs->top[j].second));
      }
    }
  }
}

TEST(Invariance, AloneAndInCompany) {
  const std::vector<GenerateRequest> requests = MakeRequests();
  for (const Setting& setting : Tables()) {
    const Results together = RunAll(setting, requests);
    ASSERT_EQ(together.size(), requests.size());
    for (const GenerateRequest& request : requests) {
      ExpectSameBits(together, RunAll(setting, {request}));
    }
  }
}

// Without the instructions of this CPU, as on others.
TEST(Invariance, OfOtherInstructions) {
  std::vector<GenerateRequest> requests = MakeRequests();
  const uint64_t every = kUnderSanitizer ? 16 : 4;
  std::erase_if(requests, [&](const auto& r) { return Raw(r.id) % every != 1; });
  for (const CpuInstructions most :
       {CpuInstructions::kAvx512, CpuInstructions::kAvx2, CpuInstructions::kPortable}) {
    LimitInstructions(most);
    for (const Ops* ops :
         {&CpuOps(Fp8Activations::kExact), &CpuOps(Fp8Activations::kQuantized),
          &CpuIntegerOps(WeightFormat::kInt8), &CpuIntegerOps(WeightFormat::kInt4)}) {
      SCOPED_TRACE(static_cast<int>(most));
      const Setting setting{.ops = ops};
      const Results together = RunAll(setting, requests);
      ASSERT_EQ(together.size(), requests.size());
      for (const GenerateRequest& request : requests) {
        ExpectSameBits(together, RunAll(setting, {request}));
      }
    }
  }
  LimitInstructions(CpuInstructions::kAll);
}

TEST(Invariance, ForEveryBudgetSlotsAndThreads) {
  const std::vector<GenerateRequest> requests = MakeRequests();
  for (const Setting& table : FewerUnderSanitizer(Tables())) {
    const Results base = RunAll(table, requests);
    for (Setting setting : {Setting{.budget = kChunk}, Setting{.budget = 777, .slots = 9},
                            Setting{.slots = 1}, Setting{.budget = 4096, .threads = 1},
                            Setting{.budget = 300, .slots = 5, .threads = 3}}) {
      SCOPED_TRACE(testing::Message() << setting.budget << " tokens, " << setting.slots
                                      << " slots, " << setting.threads << " threads");
      setting.ops = table.ops, setting.kv_cache = table.kv_cache;
      ExpectSameBits(base, RunAll(setting, requests));
    }
  }
}

TEST(Invariance, ForEveryOrderOfArrival) {
  std::vector<GenerateRequest> requests = MakeRequests();
  for (Setting table : FewerUnderSanitizer(Tables())) {
    const Results base = RunAll(table, requests);
    std::reverse(requests.begin(), requests.end());
    table.budget = 640, table.slots = 7;
    ExpectSameBits(base, RunAll(table, requests));
  }
}

}  // namespace
}  // namespace fathom
