// A token's result is a function of its request alone: the same bits alone and in company, for
// every token budget, number of slots and number of threads, and after a preemption.
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

// Preempted requests compute their prompts again in the form that they had, and what they had
// generated in rows of many tokens.
TEST(Invariance, AfterAPreemption) {
  std::vector<GenerateRequest> requests = MakeRequests();
  std::erase_if(requests, [](const auto& r) {
    return r.prompt.size() < 60 || r.prompt.size() > 260 || Raw(r.id) % 2 == 0;
  });
  // Long answers, beyond the page and the chunk in which their prompts end.
  for (GenerateRequest& request : requests) request.max_tokens = 200;
  for (Setting setting : FewerUnderSanitizer(Tables())) {
    const Results base = RunAll(setting, requests);
    setting.pages = 18;
    int64_t preemptions = 0;
    const Results tight = RunAll(setting, requests, &preemptions);
    EXPECT_GE(preemptions, 2);
    ExpectSameBits(base, tight);
  }
}

// Logit rows are sampled a few at a time.
TEST(Invariance, ForEveryNumberOfLogitRowsAtATime) {
  const std::vector<GenerateRequest> requests = MakeRequests();
  const Results base = RunAll({}, requests);
  for (const int32_t pass_rows : {1, 31}) {
    ExpectSameBits(base, RunAll({.pass_rows = pass_rows}, requests));
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
