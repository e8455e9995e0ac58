// However a request's tokens are cut into steps and passes, they have the same bits.
#include "golden/run_requests.h"

namespace fathom {
namespace {

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

}  // namespace
}  // namespace fathom
