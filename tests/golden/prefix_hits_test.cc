// A prefix hit gives the bits of a miss, wherever the hit ends and the prompt does.
#include "golden/run_requests.h"
#include "golden/wrong_tables.h"

namespace fathom {
namespace {

constexpr int32_t kLongest = 900;  // of the prompts, in chunks of 256: the last one is absorbed

std::vector<TokenId> RandomTokens(int32_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < count; ++i)
    tokens.push_back(TokenId{static_cast<int32_t>(rng.Below(4000))});
  return tokens;
}

// The first `shared` tokens that all have, then others of its own.
GenerateRequest Request(uint64_t id, int32_t shared, int32_t prompt_tokens) {
  GenerateRequest request;
  request.id = RequestId{id};
  request.prompt = RandomTokens(prompt_tokens, 1000 + id);
  const std::vector<TokenId> beginning = RandomTokens(shared, 1);
  std::copy(beginning.begin(), beginning.end(), request.prompt.begin());
  request.max_tokens = 3;
  request.sampling.temperature = id % 2 == 0 ? 0.0f : 0.8f;
  request.sampling.repetition_penalty = id % 3 == 0 ? 1.2f : 1.0f;
  request.sampling.seed = id;
  request.sampling.logprobs = 3;
  return request;
}

// Prompts that leave pages of either form behind: of whole chunks, and of parts of chunks.
std::vector<GenerateRequest> First() {
  std::vector<GenerateRequest> requests;
  for (const int32_t prompt : {kLongest, 640, 384, 128}) {
    requests.push_back(Request(requests.size() + 1, prompt, prompt));
  }
  return requests;
}

// Hits that end at every page border, and prompts that end anywhere; one in so many of them.
std::vector<GenerateRequest> Second(uint64_t one_in) {
  std::vector<GenerateRequest> requests;
  const auto add = [&](int32_t shared, int32_t prompt) {
    requests.push_back(Request(100 + requests.size(), shared, prompt));
  };
  for (int32_t border = kPageTokens; border < kLongest; border += kPageTokens) {
    for (const int32_t own : {1, 40, 200}) add(border, std::min(border + own, kLongest));
    add(border + 1, border + 1);
    add(border - 1, border + 30);
  }
  for (int32_t prompt = 1; prompt <= kLongest; prompt += 29) add(prompt, prompt);
  if (kUnderSanitizer) one_in *= 8;
  std::erase_if(requests, [&](const auto& r) { return Raw(r.id) % one_in != 0; });
  return requests;
}

std::string DifferenceAfterHits(Setting setting, uint64_t one_in, int64_t* hits) {
  const std::vector<GenerateRequest> second = Second(one_in);
  const Results misses = RunAll(setting, second);
  setting.prefix_caching = true;
  EngineStats stats;
  const Results with_hits = RunBatches(setting, {First(), second}, &stats);
  *hits = stats.prefix_hits;
  Results of_second;
  for (const auto& [id, tokens] : misses) of_second[id] = with_hits.at(id);
  return Difference(misses, of_second);
}

int64_t PromptTokens(const std::vector<GenerateRequest>& requests) {
  int64_t tokens = 0;
  for (const GenerateRequest& request : requests) {
    tokens += static_cast<int64_t>(request.prompt.size());
  }
  return tokens;
}

TEST(Invariance, AfterAPrefixHit) {
  uint64_t one_in = 1;  // all on the first table
  for (const Setting& setting : FewerUnderSanitizer(Tables())) {
    int64_t hits = 0;
    EXPECT_EQ(DifferenceAfterHits(setting, one_in, &hits), "");
    EXPECT_GT(hits, PromptTokens(Second(one_in)) / 2);
    one_in = 4;
  }
}

// Requests that come together take each other's pages as they appear; pages are few, so that some
// are evicted, and requests are preempted.
TEST(Invariance, WithPrefixesSharedUnderPressure) {
  std::vector<GenerateRequest> requests = Second(/*one_in=*/4);
  std::erase_if(requests, [](const auto& r) { return r.prompt.size() > 400; });
  for (GenerateRequest& request : requests) request.max_tokens = 200;
  const Results base = RunAll({}, requests);
  EngineStats stats;
  const Setting tight{.budget = 300, .slots = 8, .pages = 14, .prefix_caching = true};
  ExpectSameBits(base, RunBatches(tight, {requests}, &stats));
  EXPECT_GT(stats.prefix_hits, 0);
  EXPECT_GT(stats.preemptions, 0);
}

TEST(Canary, AHitThatChangesBitsIsNoticed) {
  Ops wrong = CpuOps(Fp8Activations::kExact);
  wrong.attend_absorbed.run = AttendByRowLength;
  int64_t hits = 0;
  EXPECT_NE(DifferenceAfterHits({.ops = &wrong}, /*one_in=*/8, &hits), "");
}

}  // namespace
}  // namespace fathom
