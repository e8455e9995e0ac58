// A token's result is a function of its request alone: the same bits alone and in company, for
// every token budget, number of slots, number of threads and order of arrival.
#include <cmath>
#include <utility>

#include "engine/test_recording_cpu.h"
#include "golden/run_requests.h"

namespace fathom {
namespace {

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

// Products of which a token's bits depend on how many tokens share them.
void LinearByTokens(OpContext& context, const LinearArgs& a) {
  CpuOps(Fp8Activations::kExact).linear.run(context, a);
  const int32_t live = *a.live.As<int32_t>();
  if (live < 2 || a.out.dtype() != DType::kF32) return;
  float* out = a.out.As<float>();
  for (int64_t i = 0; i < live * a.out.dim(1); ++i) out[i] = std::nextafter(out[i], 0.0f);
}

TEST(Canary, ProductsThatDependOnCompanyAreNoticed) {
  std::vector<GenerateRequest> requests = MakeRequests();
  requests.erase(requests.begin() + 3, requests.end());
  Ops wrong = CpuOps(Fp8Activations::kExact);
  wrong.linear.run = LinearByTokens;
  EXPECT_NE(Difference(RunAll({.ops = &wrong}, requests), RunAll({.ops = &wrong}, {requests[0]})),
            "");
}

// Looks every vector's ids up that the slot of the batch's first token names.
void LogProbsOfFirstSlot(OpContext& context, const LogProbsArgs& a) {
  LogProbsArgs wrong = a;
  std::vector<int32_t> first(static_cast<size_t>(a.logits.dim(0)), 0);
  if (!a.named.logprobs.absent()) {
    wrong.named.index = TensorView(first.data(), DType::kI32, {a.logits.dim(0)});
  }
  CpuOps(Fp8Activations::kExact).log_probs.run(context, wrong);
}

TEST(Canary, NamedIdsOfAnotherRequestAreNoticed) {
  std::vector<GenerateRequest> requests = MakeRequests();
  requests.erase(requests.begin() + 3, requests.end());
  ASSERT_FALSE(requests[2].sampling.logprob_token_ids.empty());
  Ops wrong = CpuOps(Fp8Activations::kExact);
  wrong.log_probs.run = LogProbsOfFirstSlot;
  EXPECT_EQ(Difference(RunAll({}, {requests[2]}), RunAll({.ops = &wrong}, {requests[2]})), "");
  EXPECT_NE(Difference(RunAll({.ops = &wrong}, requests), RunAll({.ops = &wrong}, {requests[2]})),
            "");
}

// Without the instructions of this CPU, as on others.
TEST(Invariance, OfOtherInstructions) {
  std::vector<GenerateRequest> requests = MakeRequests();
  const uint64_t every = kUnderSanitizer ? 16 : 4;
  std::erase_if(requests, [&](const auto& r) { return Raw(r.id) % every != 1; });
  for (const CpuInstructions most : {CpuInstructions::kDots, CpuInstructions::kAvx512,
                                     CpuInstructions::kAvx2, CpuInstructions::kPortable}) {
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

const Ops* right = nullptr;
constexpr int64_t kVocab = 4096;
int64_t kept = 0;  // logit vectors whose logits were kept for log-probabilities; of one run

void CountKept(OpContext& context, const GatherTokensArgs& a) {
  if (a.x.dim(1) == kVocab) kept += *a.live.As<int32_t>();
  right->gather_tokens.run(context, a);
}

// Logits are kept in steps in which a request wants log-probabilities, and no token depends on it.
TEST(Invariance, OfTokensWhoeverWantsLogProbabilities) {
  right = Setting().ops;
  Ops ops = *right;
  ops.gather_tokens.run = CountKept;
  // Steps as they come, and in several passes and padded as where they are recorded, with drafts.
  const Setting plain{.ops = &ops};
  const Setting padded{
      .slots = 8, .ops = &ops, .drafts = 3, .pass_vectors = 9, .mtp = true, .open = [] {
        return std::make_unique<RecordingCpu>(2);
      }};
  const std::vector<GenerateRequest> all = MakeRequests();
  std::vector<GenerateRequest> some = all, none = all;
  for (GenerateRequest& request : some) {
    if (Raw(request.id) % 5 != 0)
      request.sampling.logprobs = -1, request.sampling.logprob_token_ids = {};
  }
  for (GenerateRequest& request : none)
    request.sampling.logprobs = -1, request.sampling.logprob_token_ids = {};
  const Results base = RunAll({}, all);
  for (const Setting& setting : {plain, padded}) {
    ExpectSameBits(base, RunAll(setting, all));
    kept = 0;
    const Results of_some = RunAll(setting, some);
    EXPECT_GT(std::exchange(kept, 0), 0);
    const Results of_none = RunAll(setting, none);
    EXPECT_EQ(kept, 0);
    for (const auto& [id, tokens] : base) {
      const auto ids = [&](const Results& results) {
        std::vector<TokenId> ids;
        for (const GeneratedToken& token : results.at(id)) ids.push_back(token.id);
        return ids;
      };
      EXPECT_EQ(ids(base), ids(of_some));
      EXPECT_EQ(ids(base), ids(of_none));
      if (Raw(id) % 5 == 0) ExpectSameBits({{id, tokens}}, {{id, of_some.at(id)}});
    }
  }
}

}  // namespace
}  // namespace fathom
