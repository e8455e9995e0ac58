// Devices that hang before the first request: they are given up as one that hangs in a step is.
#include "engine/step_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cpu/cpu_device.h"
#include "engine/load_models.h"
#include "engine/rank_executors.h"
#include "parallel/shared_memory.h"

namespace fathom {
namespace {

enum class Fault { kHangs, kHangsForEver, kFails };

// Of what it is asked to wait for, number `at` does not end until the device is given up, or never,
// or the device fails.
class HangingDevice final : public CpuDevice {
 public:
  HangingDevice(int at, Fault fault) : CpuDevice(1), hangs_at_(at), fault_(fault) {}
  bool records() const override { return true; }
  void WaitFor(uint64_t) override {
    if (++waits_ != hangs_at_) return;
    if (fault_ == Fault::kFails) Abandon("broken");
    while (fault_ == Fault::kHangsForEver || status().ok()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // CUDA, which a real one would ask, may not answer any more.
  int64_t FreeBytes() const override {
    EXPECT_TRUE(status().ok()) << "a device that has failed is asked what memory is free";
    return CpuDevice::FreeBytes();
  }

 private:
  const int hangs_at_;
  const Fault fault_;
  int waits_ = 0;
};

constexpr int kNever = 0, kLayingOut = 1, kFirstStep = 2;

// What comes of starting ranks, of which the last hangs.
Status Start(const ParallelLayout& layout, int hangs_at, Fault fault = Fault::kHangs) {
  const JoinedRanks joined = JoinedRanks::Join(layout, SharedMemoryCommunicator::GroupOf).value();
  std::vector<std::unique_ptr<HangingDevice>> devices;
  std::vector<EngineRank> ranks;
  for (int rank = 0; rank < layout.world(); ++rank) {
    const bool last = rank == layout.world() - 1;
    devices.push_back(std::make_unique<HangingDevice>(last ? hangs_at : kNever, fault));
    ranks.push_back({devices.back().get(), Shard::OfRank(layout, rank, joined.Of(rank)),
                     /*peer_bytes=*/0});
  }
  const Checkpoint checkpoint = Checkpoint::Open("models/tiny-r1").value();
  const auto models = LoadModels(checkpoint, CpuOps(Fp8Activations::kExact), ranks,
                                 {.max_tokens = 64, .max_rows = 2, .max_model_len = 64}, nullptr)
                          .value();
  const double timeout_s = hangs_at == kNever || fault == Fault::kFails ? 3600 : 1;
  return MakeRankExecutors(models, ranks, {.num_pages = 4, .slots = 2, .step_timeout_s = timeout_s},
                           nullptr)
      .status();
}

TEST(StepWatch, WhatHangsBeforeTheFirstRequestIsGivenUp) {
  for (const ParallelLayout& layout : {ParallelLayout(), ParallelLayout{.tensor = 2}}) {
    EXPECT_TRUE(Start(layout, kNever).ok());
    const auto says = [&](int hangs_at, std::string_view what) {
      const std::string why(Start(layout, hangs_at).message());
      EXPECT_TRUE(why.ends_with(what)) << why;
    };
    says(kLayingOut, "laying out memory has not ended in 1 s");
    says(kFirstStep, "recording a step, of 1 row and 1 token, has not ended in 1 s");
  }
}

// Nobody waits for it until the time is up.
TEST(StepWatch, ARankThatFailsBeforeTheFirstRequestIsNotWaitedFor) {
  EXPECT_EQ(Start({.tensor = 2}, kFirstStep, Fault::kFails).message(), "given up with broken");
}

TEST(StepWatchDeathTest, ARankThatDoesNotComeBackIsLeft) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // Rank 0, which waits for it, is not blamed.
  EXPECT_EXIT((void)Start({.tensor = 2}, kFirstStep, Fault::kHangsForEver),
              testing::ExitedWithCode(1),
              "fathom: recording a step, of 1 row and 1 token, has not ended in 1 s; rank 1 does "
              "not come back, and is left");
}

}  // namespace
}  // namespace fathom
