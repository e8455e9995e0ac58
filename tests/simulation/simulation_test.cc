#include "simulation/simulation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "base/under_sanitizer.h"

namespace fathom::simulation {
namespace {

constexpr uint64_t kSeeds = kUnderSanitizer ? 40 : 120;
constexpr uint64_t kFreshSeeds = kUnderSanitizer ? 10 : 40;
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

std::optional<uint64_t> FromEnvironment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  return std::strtoull(text, nullptr, 10);
}

Report RunSeed(uint64_t seed, bool trace = false) {
  seed_now = seed;
  SimulationOptions options{.seed = seed, .requests = kRequests};
  if (trace) {
    options.trace = [](const std::string& text) {
      std::fputs(text.c_str(), stdout);
      std::fflush(stdout);  // before what a CHECK may say
    };
  }
  const Report report = Simulate(options);
  for (const std::string& complaint : report.complaints) {
    ADD_FAILURE() << complaint << "\nreplay it with FATHOM_SEED=" << seed;
  }
  EXPECT_EQ(report.requests(), kRequests) << "FATHOM_SEED=" << seed;
  return report;
}

void Print(const Report& r) {
  fmt::print(
      "{} requests: {} to full length, {} stopped, {} cancelled, {} failed, {} refused for a full "
      "queue, {} by an engine that stops, {} that can never run; {} steps, {} preemptions, {} "
      "moves to another group, {} drafts accepted, {} rejected, {} decodes of nothing, {} late "
      "answers of groups, {} prompt tokens computed, {} shared, {} stops under load, {} outputs "
      "that "
      "blocked; hash {:016x}\n",
      r.requests(), r.full_length, r.stopped, r.cancelled, r.failed, r.refused_full,
      r.refused_stopping, r.refused_never_fit, r.steps, r.preemptions, r.moved, r.drafts_accepted,
      r.drafts_rejected, r.rows_of_nothing, r.late_answers, r.computed_tokens, r.cached_tokens,
      r.stops, r.blocked_outputs, r.hash);
  std::fflush(stdout);
}

// FATHOM_SEED=n replays one seed, and prints every plan; FATHOM_SEEDS=n runs so many.
TEST(Simulation, EveryRequestEndsRight) {
  if (const auto seed = FromEnvironment("FATHOM_SEED")) return Print(RunSeed(*seed, true));
  const uint64_t seeds = FromEnvironment("FATHOM_SEEDS").value_or(kSeeds);
  Report total;
  for (uint64_t seed = 1; seed <= seeds && !HasFailure(); ++seed) {
    total += RunSeed(seed);
    if (seed % 1000 == 0) fmt::print("{} seeds\n", seed), std::fflush(stdout);
  }
  Print(total);
  // It is of use only if everything that can happen does.
  const auto some = static_cast<int64_t>(seeds * kRequests / 200);
  EXPECT_GT(total.full_length, some);
  EXPECT_GT(total.stopped, some);
  EXPECT_GT(total.cancelled, some);
  EXPECT_GT(total.failed, some);
  EXPECT_GT(total.refused_full, some);
  EXPECT_GT(total.refused_stopping, some);
  EXPECT_GT(total.refused_never_fit, some);
  EXPECT_GT(total.preemptions, some);
  EXPECT_GT(total.drafts_accepted, some);
  EXPECT_GT(total.drafts_rejected, some);
  EXPECT_GT(total.rows_of_nothing, some);
  EXPECT_GT(total.moved, some / 20);
  EXPECT_GT(total.late_answers, some);
  EXPECT_GT(total.blocked_outputs, some);
  EXPECT_GT(total.cached_tokens, total.computed_tokens / 20);
  EXPECT_GT(total.stops, static_cast<int64_t>(seeds / 40));
}

// Other seeds in each run of this binary.
TEST(Simulation, EveryRequestEndsRightWithFreshSeeds) {
  if (std::getenv("FATHOM_SEED") != nullptr) GTEST_SKIP() << "one seed is being replayed";
  std::random_device device;
  const uint64_t first = uint64_t{device()} << 20;
  fmt::print("seeds {} to {}\n", first, first + kFreshSeeds - 1);
  std::fflush(stdout);
  Report total;
  for (uint64_t seed = first; seed < first + kFreshSeeds && !HasFailure(); ++seed) {
    total += RunSeed(seed);
  }
  Print(total);
}

TEST(Simulation, AnySeedReplays) {
  const auto hash = [](uint64_t seed) {
    seed_now = seed;
    return Simulate({.seed = seed, .requests = kRequests}).hash;
  };
  for (uint64_t seed = 1; seed <= 10; ++seed) EXPECT_EQ(hash(seed), hash(seed)) << seed;
  EXPECT_NE(hash(1), hash(2));
}

// What is said of a fault, in a process of its own: what it does may also fail a CHECK.
std::string ComplaintOf(uint64_t seed, Fault fault) {
  int ends[2] = {};
  CHECK(pipe(ends) == 0);
  std::fflush(nullptr);
  const pid_t child = fork();
  CHECK(child >= 0, "no process to be had");
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    const rlimit no_core{.rlim_cur = 0, .rlim_max = 0};
    setrlimit(RLIMIT_CORE, &no_core);
    dup2(ends[1], STDERR_FILENO);
    const Report report = Simulate({.seed = seed, .requests = kRequests, .fault = fault});
    if (!report.complaints.empty()) fmt::print(stderr, "{}\n", report.complaints[0]);
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char buffer[512];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;) {
    said.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  const bool checked = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
  EXPECT_TRUE(checked || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << said;
  return said.substr(0, said.find('\n'));
}

// The canaries: each thing done wrong is noticed, within a few seeds.
class Canary : public testing::TestWithParam<std::pair<Fault, const char*>> {};

TEST_P(Canary, IsCaught) {
  constexpr uint64_t kTries = 60, kEnough = 6;
  uint64_t tried = 0, caught = 0;
  std::string first;
  while (tried < kTries && caught < kEnough) {
    const std::string complaint = ComplaintOf(++tried, GetParam().first);
    if (!complaint.empty() && caught++ == 0) first = complaint;
  }
  fmt::print("{}: caught by {} of {} seeds: {}\n", GetParam().second, caught, tried, first);
  EXPECT_GE(caught, 3u);
}

TEST(CanaryOfCanaries, WithoutAFaultNothingIsSaid) {
  for (uint64_t seed = 1; seed <= 3; ++seed) EXPECT_EQ(ComplaintOf(seed, Fault::kNone), "");
}

INSTANTIATE_TEST_SUITE_P(Simulation, Canary, testing::ValuesIn(kFaults),
                         [](const auto& info) { return std::string(info.param.second); });

}  // namespace
}  // namespace fathom::simulation
