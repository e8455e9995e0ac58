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
        const auto all = me.Meet(&mine);
        for (int r = 0; r < kRanks; ++r) {
          if (*static_cast<const int*>(all[static_cast<size_t>(r)]) != round * kRanks + r) {
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

}  // namespace
}  // namespace fathom
