// Runs requests through an engine on tiny-r1, and compares the bits of what comes.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
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

inline constexpr int32_t kChunk = 256;
inline constexpr int32_t kMaxModelLen = 1280;

struct Setting {
  int32_t budget = 1024;
  int32_t slots = 32;
  int threads = 2;
  const Ops* ops = &CpuOps(Fp8Activations::kExact);
  std::optional<DType> kv_cache = {};
  int32_t drafts = 0;        // that a decode verifies
  int32_t pages = 0;         // 0: enough for every slot
  int32_t pass_vectors = 0;  // logit vectors that are sampled at a time; 0: one for each slot
  std::optional<NgramLookup> ngram = {};
  bool mtp = false;
  bool adapts = false;  // `drafts` are the most
  bool prefix_caching = false;
  bool cancels = false;  // every third request, once it has tokens
  // What it runs on; nothing: a CPU of so many threads.
  std::function<std::unique_ptr<Device>()> open = {};
  std::function<void()> warm = {};  // called before the first step, once all are recorded
};

// Every table, and the default one with an FP8 cache.
inline std::vector<Setting> Tables() {
  return {{},
          {.kv_cache = DType::kF8E4M3},
          {.ops = &CpuOps(Fp8Activations::kQuantized)},
          {.ops = &CpuBF16Ops()},
          {.ops = &CpuIntegerOps(WeightFormat::kInt8)},
          {.ops = &CpuIntegerOps(WeightFormat::kInt4)}};
}

inline std::vector<Setting> FewerUnderSanitizer(std::vector<Setting> tables) {
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
    return std::exchange(tokens_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, std::vector<GeneratedToken>> tokens_;
  size_t ended_ = 0;
};

using Results = std::map<RequestId, std::vector<GeneratedToken>>;

// Runs each batch of requests together, once the one before has ended. `stats`, if given: at the
// end.
inline Results RunBatches(const Setting& setting,
                          const std::vector<std::vector<GenerateRequest>>& batches,
                          EngineStats* stats = nullptr) {
  auto checkpoint = Checkpoint::Open("models/tiny-r1");
  CHECK(checkpoint.ok(), "{}", checkpoint.status().message());
  const std::unique_ptr<Device> opened =
      setting.open ? setting.open() : std::make_unique<CpuDevice>(setting.threads);
  Device& device = *opened;
  auto model = Model::Load(
      *checkpoint, *setting.ops, device,
      {.max_tokens = setting.budget,
       .max_rows = setting.slots,
       .max_drafts = setting.drafts,
       .ngram = setting.ngram,
       .mtp = setting.mtp,
       .max_logit_vectors = setting.pass_vectors > 0 ? setting.pass_vectors : setting.slots,
       .max_model_len = kMaxModelLen,
       .kv_cache = setting.kv_cache},
      nullptr);
  CHECK(model.ok(), "{}", model.status().message());
  const SteadyClock clock;
  Collector collector;
  const int32_t pages =
      setting.pages > 0 ? setting.pages : setting.slots * kMaxModelLen / kPageTokens;
  EngineOptions options{.scheduler = {.max_num_seqs = setting.slots,
                                      .max_num_batched_tokens = setting.budget,
                                      .prefill_chunk = kChunk,
                                      .num_pages = pages,
                                      .max_model_len = kMaxModelLen,
                                      .absorbed_limit = (*model)->options().absorbed_limit,
                                      .max_drafts = setting.drafts,
                                      .lookahead = setting.mtp ? setting.drafts - 1 : 0,
                                      .prefix_caching = setting.prefix_caching},
                        .adapts_drafts = setting.adapts};
  auto executor = std::make_unique<ModelExecutor>(
      **model, device,
      ModelExecutorOptions{
          .num_pages = pages, .slots = setting.slots, .time_steps = setting.adapts});
  options.step_times = executor->recorded().times;
  if (setting.warm) setting.warm();
  Engine* running = nullptr;
  Engine engine(options, std::move(executor), &clock, [&](std::vector<RequestOutput> outputs) {
    for (const RequestOutput& output : outputs) {
      if (setting.cancels && Raw(output.id) % 3 == 0) running->Cancel(output.id);
    }
    collector.Take(std::move(outputs));
  });
  running = &engine;
  Results results;
  size_t submitted = 0;
  for (const std::vector<GenerateRequest>& batch : batches) {
    for (const GenerateRequest& request : batch) {
      const Status status = engine.Submit(request);
      CHECK(status.ok(), "{}", status.message());
    }
    if (submitted == 0) engine.Start();
    submitted += batch.size();
    results.merge(collector.WaitFor(submitted));
  }
  if (stats != nullptr) *stats = engine.Stats();
  return results;
}

// Runs the requests together. `preemptions`, if given: how often one was preempted.
inline Results RunAll(const Setting& setting, const std::vector<GenerateRequest>& requests,
                      int64_t* preemptions = nullptr) {
  EngineStats stats;
  Results results = RunBatches(setting, {requests}, &stats);
  if (preemptions != nullptr) *preemptions = stats.preemptions;
  return results;
}

// Prompts of 1 to 900 tokens (absorbed and expanded rows, chunk and page borders), greedy and
// sampled.
inline std::vector<GenerateRequest> MakeRequests() {
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
    if (requests.size() % 4 == 2) {  // others beside their likeliest
      request.sampling.logprob_token_ids = {TokenId{length}, TokenId{4000}, TokenId{0}};
    }
    requests.push_back(std::move(request));
  }
  if (kUnderSanitizer) std::erase_if(requests, [](const auto& r) { return Raw(r.id) % 4 != 1; });
  return requests;
}

// Of a token that was asked for its log-probabilities, with their bits.
inline bool SameBits(const GeneratedToken& a, const GeneratedToken& b) {
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  return a.id == b.id && a.logprobs && b.logprobs &&
         bits(a.logprobs->logprob) == bits(b.logprobs->logprob) &&
         std::ranges::equal(a.logprobs->top, b.logprobs->top, [&](const auto& x, const auto& y) {
           return x.first == y.first && bits(x.second) == bits(y.second);
         });
}

// The first token of `b` that is another one in `a`, or has other bits; empty if there is none.
inline std::string Difference(const Results& a, const Results& b) {
  for (const auto& [id, tokens] : b) {
    const auto& others = a.at(id);
    const auto at = std::ranges::mismatch(tokens, others, SameBits);
    if (at.in1 != tokens.end() || at.in2 != others.end()) {
      return fmt::format("request {}, token {}", Raw(id), at.in1 - tokens.begin());
    }
  }
  return "";
}

inline void ExpectSameBits(const Results& a, const Results& b) {
  EXPECT_EQ(Difference(a, b), "");
}

}  // namespace fathom
