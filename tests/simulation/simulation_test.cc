#include "simulation/simulation.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "base/check.h"
#include "base/log.h"
#include "base/under_sanitizer.h"

namespace fathom::simulation {
namespace {

constexpr uint64_t kSeeds = kUnderSanitizer ? 40 : 150;
constexpr int kRequests = 300;

uint64_t seed_now = 0;

// A CHECK that fails says where; this says how to see it again.
void SayTheSeed(int) {
  std::fprintf(stderr, "replay it with FATHOM_SEED=%llu\n",
               static_cast<unsigned long long>(seed_now));
}

// What every test here begins with.
class Quiet : public testing::Environment {
 public:
  void SetUp() override {
    std::signal(SIGABRT, SayTheSeed);
    CHECK(SetLogLevel("warning"));
  }
};
const testing::Environment* const quiet = testing::AddGlobalTestEnvironment(new Quiet);

Report RunSeed(uint64_t seed) {
  seed_now = seed;
  const Report report = Simulate(seed, kRequests);
  for (const std::string& complaint : report.complaints) {
    ADD_FAILURE() << complaint << "\nreplay it with FATHOM_SEED=" << seed;
  }
  EXPECT_EQ(report.requests(), kRequests) << "FATHOM_SEED=" << seed;
  return report;
}

void Print(const Report& report) {
  std::printf(
      "%lld requests: %lld to full length, %lld stopped, %lld cancelled, %lld failed, "
      "%lld refused for a full queue, %lld that can never run; %lld steps, "
      "%lld preemptions; hash %016llx\n",
      static_cast<long long>(report.requests()), static_cast<long long>(report.full_length),
      static_cast<long long>(report.stopped), static_cast<long long>(report.cancelled),
      static_cast<long long>(report.failed), static_cast<long long>(report.refused_full),
      static_cast<long long>(report.refused_never_fit), static_cast<long long>(report.steps),
      static_cast<long long>(report.preemptions), static_cast<unsigned long long>(report.hash));
}

TEST(Simulation, EveryRequestEndsRight) {
  if (const char* seed = std::getenv("FATHOM_SEED")) {
    Print(RunSeed(std::strtoull(seed, nullptr, 10)));
    return;
  }
  Report total;
  for (uint64_t seed = 1; seed <= kSeeds && !HasFailure(); ++seed) total += RunSeed(seed);
  Print(total);
  // It is of use only if everything that can happen does.
  const int64_t some = kSeeds * kRequests / 200;
  EXPECT_GT(total.full_length, some);
  EXPECT_GT(total.stopped, some);
  EXPECT_GT(total.cancelled, some);
  EXPECT_GT(total.failed, some);
  EXPECT_GT(total.refused_full, some);
  EXPECT_GT(total.refused_never_fit, some);
  EXPECT_GT(total.preemptions, some);
}

TEST(Simulation, AnySeedReplays) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    seed_now = seed;
    EXPECT_EQ(Simulate(seed, kRequests).hash, Simulate(seed, kRequests).hash) << seed;
  }
  EXPECT_NE(Simulate(1, kRequests).hash, Simulate(2, kRequests).hash);
}

// The canaries: each thing done wrong is noticed, within a few seeds.
class Canary : public testing::TestWithParam<std::pair<Fault, const char*>> {};

TEST_P(Canary, IsCaught) {
  constexpr uint64_t kTries = 30;
  uint64_t caught = 0;
  std::string first;
  for (uint64_t seed = 1; seed <= kTries; ++seed) {
    seed_now = seed;
    const Report report = Simulate(seed, kRequests, GetParam().first);
    if (report.complaints.empty()) continue;
    if (caught++ == 0) first = report.complaints[0];
  }
  std::printf("%s: caught by %llu of %llu seeds: %s\n", GetParam().second,
              static_cast<unsigned long long>(caught), static_cast<unsigned long long>(kTries),
              first.c_str());
  EXPECT_GE(caught, 3u);
}

INSTANTIATE_TEST_SUITE_P(Simulation, Canary,
                         testing::Values(std::pair(Fault::kPagesFreedAtOnce, "PagesFreedAtOnce"),
                                         std::pair(Fault::kTokenForgotten, "TokenForgotten"),
                                         std::pair(Fault::kLogprobsRepeated, "LogprobsRepeated"),
                                         std::pair(Fault::kTokensTraded, "TokensTraded"),
                                         std::pair(Fault::kPageIgnored, "PageIgnored")),
                         [](const auto& info) { return std::string(info.param.second); });

}  // namespace
}  // namespace fathom::simulation
