#include "parallel/shared_memory.h"

#include <gtest/gtest.h>

#include <thread>

namespace fathom {
namespace {

// Each rank reads in each round what all brought to it, and changes its own as soon as it may.
TEST(SharedMemoryTest, EachRankReadsWhatAllBrought) {
  constexpr int kRanks = 4, kRounds = 2000;
  const auto group = SharedMemoryCommunicator::Group(kRanks);
  std::vector<int> wrong(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      SharedMemoryCommunicator& me = *group[static_cast<size_t>(rank)];
      ASSERT_EQ(me.rank(), rank);
      ASSERT_EQ(me.size(), kRanks);
      int mine = 0;
      for (int round = 0; round < kRounds; ++round) {
        mine = round * kRanks + rank;
        const auto all = me.Meet({std::as_bytes(std::span(&mine, 1))}, {});
        for (int r = 0; r < kRanks; ++r) {
          if (*reinterpret_cast<const int*>(all[static_cast<size_t>(r)][0].data()) !=
              round * kRanks + r) {
            ++wrong[static_cast<size_t>(rank)];
          }
        }
        me.Part();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(kRanks));
}

TEST(SharedMemoryTest, WhoWaitsGivesUpOnceARankFailed) {
  const auto group = SharedMemoryCommunicator::Group(2);
  std::thread waits([&] {
    EXPECT_TRUE(group[1]->Meet({}, {}).empty());
    EXPECT_TRUE(group[1]->Meet({}, {}).empty());
  });
  group[0]->Abort();
  waits.join();
  EXPECT_TRUE(group[0]->Meet({}, {}).empty());
}

}  // namespace
}  // namespace fathom
