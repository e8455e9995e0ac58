#include "speculation/draft_depth.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/rng.h"

namespace fathom {
namespace {

constexpr int32_t kMost = 4;

// A machine whose steps of `decodes` rows and `drafts` take a time, and in which each draft stands
// with a probability. Two steps are in flight.
struct World {
  std::function<double(int32_t decodes, int32_t drafts)> seconds;
  double stands = 0.8;
  double noise = 0.05;  // of a step's time, at the most
  // Steps of a hundred that are not judged, having prompts in them, and after which the host comes
  // late, by as much as a step takes.
  uint64_t unjudged = 0, late = 0;
};

struct Outcome {
  double tokens = 0, seconds = 0;
  std::vector<int64_t> steps = std::vector<int64_t>(kMost + 1);  // of each depth

  double rate() const { return tokens / seconds; }
  int32_t favourite() const {
    return static_cast<int32_t>(std::max_element(steps.begin(), steps.end()) - steps.begin());
  }
};

int32_t Stood(const World& world, int32_t drafts, Rng& rng) {
  int32_t stood = 0;
  while (stood < drafts && rng.Below(1000) < 1000 * world.stands) ++stood;
  return stood;
}

Outcome RunSteps(DraftDepth& depth, const World& world, int32_t decodes, int steps, Rng& rng) {
  Outcome outcome;
  struct Step {
    DraftDepth::Choice choice;
    int32_t proposed = 0;  // by the step before
  };
  std::vector<Step> in_flight;
  int32_t proposed = 0;
  for (int i = 0; i < steps; ++i) {
    const DraftDepth::Choice choice = depth.Choose(decodes);
    in_flight.push_back({choice, std::min(proposed, choice.drafts)});
    proposed = choice.drafts;
    if (in_flight.size() < 2) continue;
    const Step step = in_flight.front();
    in_flight.erase(in_flight.begin());
    const double seconds = world.seconds(decodes, step.proposed) *
                           (1 + world.noise * static_cast<double>(rng.Below(1000)) / 1000);
    outcome.seconds += seconds;
    const bool judged = step.choice.settled && rng.Below(100) >= world.unjudged;
    const bool late = rng.Below(100) < world.late;
    ++outcome.steps[static_cast<size_t>(step.choice.drafts)];
    if (judged) depth.Took(decodes, step.choice.drafts, late ? 2 * seconds : seconds);
    for (int32_t row = 0; row < decodes; ++row) {
      const int32_t stood = Stood(world, step.proposed, rng);
      outcome.tokens += 1 + stood;
      if (judged) depth.Verified(decodes, step.choice.drafts, stood);
    }
  }
  return outcome;
}

// Tokens a second with so many drafts.
double RateOf(const World& world, int32_t decodes, int32_t drafts) {
  double tokens = 0, reached = 1;
  for (int32_t i = 0; i <= drafts; ++i, reached *= world.stands) tokens += reached;
  return decodes * tokens / (world.seconds(decodes, drafts) * (1 + world.noise / 2));
}

// Tokens a second of the best depth, and which it is.
std::pair<double, int32_t> Best(const World& world, int32_t decodes) {
  std::pair<double, int32_t> best{0, 0};
  for (int32_t drafts = 0; drafts <= kMost; ++drafts) {
    best = std::max(best, {RateOf(world, decodes, drafts), drafts});
  }
  return best;
}

double ByBytes(int32_t decodes, int32_t drafts) {  // drafts are nearly free in small batches
  return 1 + 0.01 * decodes * (1 + drafts);
}

TEST(DraftDepth, FindsWhatBringsMostTokensASecond) {
  for (const double stands : {0.0, 0.3, 0.6, 0.9}) {
    for (const int32_t decodes : {1, 3, 8, 32, 200}) {
      const World world{ByBytes, stands};
      DraftDepth depth(kMost);
      Rng rng(static_cast<uint64_t>(decodes));
      RunSteps(depth, world, decodes, 1000, rng);
      const Outcome late = RunSteps(depth, world, decodes, 4000, rng);
      const auto [rate, drafts] = Best(world, decodes);
      EXPECT_GT(late.rate(), 0.97 * rate)
          << stands << " " << decodes << ": " << testing::PrintToString(late.steps) << ": not "
          << drafts;
    }
  }
}

TEST(DraftDepth, NeverLosesMuchToNoDrafts) {
  // Every draft costs as much as a token.
  const World world{[](int32_t decodes, int32_t drafts) { return decodes * (1.0 + drafts); }, 0.5};
  for (const int32_t decodes : {1, 32}) {
    DraftDepth depth(kMost);
    Rng rng(1);
    EXPECT_GT(RunSteps(depth, world, decodes, 3000, rng).rate(), 0.97 * Best(world, decodes).first);
  }
}

// As a server of many requests for a few seconds: a third of the steps have prompts, and what hands
// out tokens is late now and then. One draft is worth a little less than none.
TEST(DraftDepth, FindsSmallDifferencesAmongDisturbances) {
  const World world{.seconds = [](int32_t, int32_t drafts) { return 3 + 3.15 * drafts; },
                    .stands = 0.95,
                    .noise = 0.25,
                    .unjudged = 35,
                    .late = 8};
  double rates = 0;
  constexpr int kRuns = 50;
  for (uint64_t seed = 0; seed < kRuns; ++seed) {
    DraftDepth depth(kMost);
    Rng rng(seed);
    rates += RunSteps(depth, world, 31, 900, rng).rate() / kRuns;
  }
  EXPECT_GT(rates, 0.975 * Best(world, 31).first);
}

TEST(DraftDepth, FollowsWhatChanges) {
  DraftDepth depth(kMost);
  Rng rng(2);
  for (const double stands : {0.9, 0.05, 0.9}) {
    const World world{ByBytes, stands};
    RunSteps(depth, world, 32, 6000, rng);
    EXPECT_EQ(RunSteps(depth, world, 32, 2000, rng).favourite(), Best(world, 32).second) << stands;
  }
}

// By how much times that are known before the first step are off, of each depth. Short contexts
// make all of them too short alike.
const std::vector<std::vector<double>> kRightTables = {{1, 1, 1, 1, 1}, {0.7, 0.7, 0.7, 0.7, 0.7}};
const std::vector<std::vector<double>> kWrongTables = {
    {1, 0.7, 0.7, 0.7, 0.7},    // drafts look 30 % cheaper than they are,
    {1, 1.3, 1.3, 1.3, 1.3},    // or dearer,
    {0.7, 1.3, 0.7, 1.3, 0.7},  // or any of both
    {1.3, 0.7, 1.3, 0.7, 1.3}};
// Ones in which no draft pays, two do, none stands, and all pay.
const std::vector<World> kWorlds = {
    {[](int32_t decodes, int32_t drafts) { return decodes * (1.0 + drafts); }, 0.8},
    {[](int32_t, int32_t drafts) { return std::max(1.0 + 0.05 * drafts, 0.6 * drafts); }, 0.8},
    {ByBytes, 0.0},
    {ByBytes, 0.9}};

DraftDepth Expecting(const World& world, int32_t decodes, const std::vector<double>& off) {
  DraftDepth depth(kMost);
  for (int32_t drafts = 0; drafts < static_cast<int32_t>(off.size()); ++drafts) {
    const double right = world.seconds(decodes, drafts);
    depth.Expect({decodes, drafts, right * off[static_cast<size_t>(drafts)]});
  }
  return depth;
}

// The first 50 steps bring what the best depth does, but for trials of its neighbours.
TEST(DraftDepth, BeginsWhereTimesKnownBeforeSay) {
  const World& all_pay = kWorlds.back();
  for (const std::vector<double>& table : kRightTables) {
    for (const int32_t decodes : {1, 8, 32}) {
      for (const World& world : kWorlds) {
        DraftDepth depth = Expecting(world, decodes, table);
        Rng rng(static_cast<uint64_t>(decodes));
        EXPECT_GT(RunSteps(depth, world, decodes, 50, rng).rate(),
                  0.85 * Best(world, decodes).first)
            << decodes << ": " << &world - kWorlds.data();
      }
      DraftDepth depth = Expecting(all_pay, decodes, table), without(kMost);
      Rng rng(1), again(1);
      EXPECT_GT(RunSteps(depth, all_pay, decodes, 50, rng).rate(),
                1.05 * RunSteps(without, all_pay, decodes, 50, again).rate());
    }
  }
}

// Right, off by 30 %, or none: from step 50 on little is lost to no drafts, and soon the best is
// found.
TEST(DraftDepth, TimesKnownBeforeGiveWayToThoseOfSteps) {
  std::vector<std::vector<double>> tables = kWrongTables;
  tables.insert(tables.end(), kRightTables.begin(), kRightTables.end());
  tables.push_back({});
  tables.push_back({1, 1});  // of some depths alone
  for (const std::vector<double>& table : tables) {
    for (const int32_t decodes : {1, 8, 32}) {
      for (const World& world : kWorlds) {
        DraftDepth depth = Expecting(world, decodes, table);
        Rng rng(static_cast<uint64_t>(decodes));
        RunSteps(depth, world, decodes, 50, rng);
        EXPECT_GT(RunSteps(depth, world, decodes, 1500, rng).rate(),
                  0.97 * RateOf(world, decodes, 0));
        EXPECT_GT(RunSteps(depth, world, decodes, 2000, rng).rate(),
                  0.97 * Best(world, decodes).first)
            << testing::PrintToString(table) << decodes << ": " << &world - kWorlds.data();
      }
    }
  }
}

TEST(DraftDepth, SizesAreTheLargestBatchesThatAreJudgedAlike) {
  EXPECT_EQ(DraftDepth::Sizes(1), std::vector<int32_t>{1});
  EXPECT_EQ(DraftDepth::Sizes(40), (std::vector<int32_t>{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40}));
  // What is said of one of them is known of all that are judged with it.
  DraftDepth depth(kMost);
  depth.Expect({8, 0, 1.0});
  depth.Expect({8, 1, 3.0});
  EXPECT_EQ(depth.Choose(7).drafts, 0);
  EXPECT_EQ(depth.Choose(9).drafts, 1);
}

TEST(DraftDepth, BatchesOfEachSizeAreJudgedAlone) {
  const World world{[](int32_t decodes, int32_t drafts) {
    return decodes > 8 ? 1.0 + drafts : 1.0 + 0.01 * drafts;
  }};
  DraftDepth depth(kMost);
  Rng rng(3);
  for (int turn = 0; turn < 20; ++turn) {
    for (const int32_t decodes : {2, 64}) RunSteps(depth, world, decodes, 100, rng);
  }
  EXPECT_EQ(RunSteps(depth, world, 2, 400, rng).favourite(), kMost);
  EXPECT_EQ(RunSteps(depth, world, 64, 400, rng).favourite(), 0);
}

TEST(DraftDepth, WithoutTimesItStaysAtOneDraft) {
  DraftDepth depth(kMost);
  for (int step = 0; step < 1000; ++step) EXPECT_EQ(depth.Choose(7).drafts, 1);
}

TEST(DraftDepth, OneDraftAtTheMost) {
  DraftDepth depth(1);
  Rng rng(4);
  EXPECT_EQ(RunSteps(depth, {ByBytes, 0.9}, 1, 2000, rng).favourite(), 1);
  RunSteps(depth, {ByBytes, 0.0}, 1, 4000, rng);
  EXPECT_EQ(RunSteps(depth, {ByBytes, 0.0}, 1, 1000, rng).favourite(), 0);
}

}  // namespace
}  // namespace fathom
