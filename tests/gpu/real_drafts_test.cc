// Real proposers through whole engines: the draft layer and n-grams against none, op by op and with
// recorded steps. Needs a GPU.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cuda/device.h"
#include "golden/real_drafts.h"

namespace fathom {
namespace {

// How often drafts were verified op by op; a replay calls nothing. Of one engine at a time.
int verified = 0;
const Ops* right = nullptr;

void CountAndVerify(OpContext& context, const VerifyDraftsArgs& a) {
  ++verified;
  right->verify_drafts.run(context, a);
}

class RealDraftsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = CudaDevice::Open(0);
    if (!device.ok()) GTEST_SKIP() << "not run: " << device.status().message();
    tables_ = {&CudaPortableOps(Fp8Activations::kQuantized),
               &CudaOps(**device, Fp8Activations::kQuantized)};
  }

  // Each run has a device of its own, as what was recorded is of one engine's addresses.
  static Setting On(const Ops* ops, bool records) {
    return {.slots = 8,  // few, as all sizes up to it are recorded in each run
            .ops = ops,
            .pass_vectors = 8 * 4,  // those of a step: log-probabilities of more are not replayed
            .open = [records]() -> std::unique_ptr<Device> {
              auto device = CudaDevice::Open(0).value();
              if (!records) device->RecordNothing();
              return device;
            }};
  }

  std::vector<const Ops*> tables_;
};

TEST_F(RealDraftsTest, ChangeNoBitOpByOpAndReplayed) {
  for (const Ops* ops : tables_) {
    SCOPED_TRACE(ops->name);
    const Setting eager = On(ops, /*records=*/false), replayed = On(ops, /*records=*/true);
    const std::vector<GenerateRequest> requests = RequestsForRealDrafts(eager);
    const Results base = RunAll(eager, requests);
    ExpectSameBits(base, RunAll(replayed, requests));
    for (const Setting& setting : {eager, replayed}) {
      ExpectRealDraftsChangeNoBit(setting, requests, base, {1, 3});
    }
    // As many as pay, by steps that are timed at start-up in the requests' slots and pages.
    for (Setting setting : {WithMtp(replayed, 3), WithNgrams(replayed, 3)}) {
      setting.adapts = true;
      ExpectSameBits(base, RunAll(setting, requests));
    }
  }
}

TEST_F(RealDraftsTest, CanaryWhatIsNotVerifiedIsNoticed) {
  for (const bool records : {false, true}) {
    const Setting setting = On(tables_.back(), records);
    const std::vector<GenerateRequest> requests = RequestsForRealDrafts(setting);
    ExpectUnverifiedDraftsAreNoticed(setting, requests, RunAll(setting, requests));
  }
}

// The canary of what is replayed above: few steps, those with long prompts, are enqueued op by op.
TEST_F(RealDraftsTest, MostStepsAreReplayedWhereStepsAreRecorded) {
  right = tables_.back();
  Ops ops = *right;
  ops.verify_drafts.run = CountAndVerify;
  const auto op_by_op = [&](bool records) {
    Setting setting = WithMtp(On(&ops, records), 3);
    setting.warm = [] { verified = 0; };
    RunAll(setting, RequestsForRealDrafts(On(right, records)));
    return verified;
  };
  const int eager = op_by_op(false);
  EXPECT_GT(eager, 20);
  EXPECT_LT(op_by_op(true), eager / 2);
}

}  // namespace
}  // namespace fathom
