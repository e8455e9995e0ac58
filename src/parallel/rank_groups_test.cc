#include "parallel/rank_groups.h"

#include <gtest/gtest.h>

#include "parallel/shared_memory.h"

namespace fathom {
namespace {

// Who is in which group, as lists of ranks, in the order that they are made in.
TEST(RankGroupsTest, WhoMeetsWhom) {
  std::vector<std::vector<int>> made;
  const JoinedRanks joined =
      JoinedRanks::Join({.tensor = 2, .data = 2, .pipeline = 2, .experts = true},
                        [&](std::span<const int> ranks) {
                          made.emplace_back(ranks.begin(), ranks.end());
                          return SharedMemoryCommunicator::GroupOf(ranks);
                        })
          .value();
  const std::vector<std::vector<int>> expected = {
      {0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 1, 2, 3}, {4, 5, 6, 7},  // tensor, experts
      {0, 4}, {4, 0}, {1, 5}, {5, 1}, {2, 6},       {6, 2},       {3, 7}, {7, 3}};
  EXPECT_EQ(made, expected);
  for (int rank = 0; rank < 8; ++rank) {
    const RankGroups& groups = joined.Of(rank);
    EXPECT_EQ(groups.tensor->rank(), rank % 2);
    EXPECT_EQ(groups.experts->rank(), rank % 4);
    EXPECT_EQ(groups.before == nullptr, rank < 4);
    EXPECT_EQ(groups.after == nullptr, rank >= 4);
    EXPECT_EQ(groups.stages->rank(), rank < 4 ? 1 : 0);  // the last stage has what others want
    const Communicator* link = rank < 4 ? groups.after : groups.before;
    EXPECT_EQ(link->rank(), rank < 4 ? 0 : 1);
  }
}

TEST(RankGroupsTest, OneRankMeetsNobody) {
  const JoinedRanks joined = JoinedRanks::Join({}, SharedMemoryCommunicator::GroupOf).value();
  const RankGroups& alone = joined.Of(0);
  for (const Communicator* group :
       {alone.tensor, alone.experts, alone.before, alone.after, alone.stages}) {
    EXPECT_EQ(group, nullptr);
  }
}

}  // namespace
}  // namespace fathom
