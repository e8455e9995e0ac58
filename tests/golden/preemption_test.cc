// However a request's tokens are cut into steps and passes, they have the same bits.
#include "golden/run_requests.h"
#include "golden/wrong_tables.h"

namespace fathom {
namespace {

const Ops& RightOps() {
  return CpuOps(Fp8Activations::kExact);
}

// Draws with the number of a logit vector's place in its pass, instead of its token's position.
void SampleByPlaceInPass(OpContext& context, const SampleArgs& a) {
  std::vector<int32_t> places(static_cast<size_t>(a.positions.dim(0)));
  for (int32_t i = 0; i < *a.live.As<int32_t>(); ++i) {
    places[static_cast<size_t>(a.index.As<int32_t>()[i])] = i;
  }
  SampleArgs wrong = a;
  wrong.positions = TensorView(places.data(), DType::kI32, {a.positions.dim(0)});
  RightOps().sample.run(context, wrong);
}

// Preempted requests compute their prompts again in the form that they had, and what they had
// generated in rows of many tokens.
std::string DifferenceAfterPreemptions(Setting setting) {
  std::vector<GenerateRequest> requests = MakeRequests();
  std::erase_if(requests, [](const auto& r) {
    return r.prompt.size() < 60 || r.prompt.size() > 260 || Raw(r.id) % 2 == 0;
  });
  // Long answers, beyond the page and the chunk in which their prompts end.
  for (GenerateRequest& request : requests) request.max_tokens = 200;
  const Results base = RunAll(setting, requests);
  setting.pages = 18;
  int64_t preemptions = 0;
  const Results tight = RunAll(setting, requests, &preemptions);
  EXPECT_GE(preemptions, kUnderSanitizer ? 1 : 2);  // of three requests, or six
  return Difference(base, tight);
}

TEST(Invariance, AfterAPreemption) {
  for (const Setting& setting : FewerUnderSanitizer(Tables())) {
    EXPECT_EQ(DifferenceAfterPreemptions(setting), "");
  }
}

TEST(Canary, APreemptionThatChangesBitsIsNoticed) {
  Ops wrong = RightOps();
  wrong.attend_absorbed.run = AttendByRowLength;
  EXPECT_NE(DifferenceAfterPreemptions({.ops = &wrong}), "");
}

// Logit vectors are sampled a few at a time.
TEST(Invariance, ForEveryNumberOfLogitVectorsAtATime) {
  const std::vector<GenerateRequest> requests = MakeRequests();
  const Results base = RunAll({}, requests);
  for (const int32_t pass_vectors : {1, 31}) {
    ExpectSameBits(base, RunAll({.pass_vectors = pass_vectors}, requests));
  }
}

TEST(Canary, ADrawThatDependsOnItsPassIsNoticed) {
  std::vector<GenerateRequest> requests = MakeRequests();
  requests.resize(8);
  for (GenerateRequest& request : requests) request.sampling.temperature = 0.8f;
  Ops wrong = RightOps();
  wrong.sample.run = SampleByPlaceInPass;
  EXPECT_NE(Difference(RunAll({.ops = &wrong}, requests),
                       RunAll({.ops = &wrong, .pass_vectors = 1}, requests)),
            "");
}

}  // namespace
}  // namespace fathom
