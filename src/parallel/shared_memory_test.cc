#include "parallel/shared_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/activity.h"

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

// What a rank brings lies in its op: it stays there while another reads, whatever is given up.
TEST(SharedMemoryTest, WhatWasBroughtStaysUntilAllHaveReadIt) {
  const auto group = SharedMemoryCommunicator::Group(2);
  std::atomic<bool> met = false, parted = false;
  std::thread other([&] {
    EXPECT_EQ(group[1]->Meet({}, {}).size(), 2u);
    met = true;
    met.notify_all();
    group[1]->Part();
    parted = true;
  });
  EXPECT_EQ(group[0]->Meet({}, {}).size(), 2u);
  met.wait(false);
  group[0]->Abort();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(parted) << "while it was read";
  group[0]->Part();
  other.join();
}

// Ranks that give up at once have still met: if one reads, all have come and stay.
TEST(SharedMemoryTest, AMeetingTookPlaceForAllOrForNone) {
  for (int round = 0; round < 200; ++round) {
    const auto group = SharedMemoryCommunicator::Group(2);
    bool met = false;
    std::thread other([&] {
      met = !group[1]->Meet({}, {}).empty();
      if (met) group[1]->Part();
    });
    const bool all_came = !group[0]->Meet({}, {}).empty();
    group[0]->Abort();
    if (all_came) group[0]->Part();
    other.join();
    ASSERT_EQ(met, all_came) << "round " << round;
  }
}

// Who waits long enough says who has not come, by the layout's names, and what for. Nobody goes on
// before that was heard, whoever comes meanwhile.
TEST(SharedMemoryTest, WhoHasWaitedLongEnoughNamesWhoHasNotCome) {
  for (const bool to_part : {false, true}) {
    const auto group = SharedMemoryCommunicator::Group(3);
    std::atomic<bool> waited_enough = false, said = false;
    std::string why;
    for (const auto& rank : group) {
      rank->SetInLayout({4, 5, 6});
      if (rank->rank() == 2) continue;  // who waits without an end is let go all the same
      rank->GiveUpAfter(rank->rank() == 0 ? 0.3 : 30, [&](const Status& status) {
        waited_enough = true;
        waited_enough.notify_all();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        why = status.message();
        said = true;
      });
    }
    const auto run = [&](size_t rank) {
      current_activity = {.step = 7, .describe = [](const void*) -> std::string { return "sum"; }};
      if (to_part) {
        ASSERT_EQ(group[rank]->Meet({}, {}).size(), 3u);
      }
      if (rank == 2) waited_enough.wait(false);
      if (to_part) {
        group[rank]->Part();
      } else {
        EXPECT_TRUE(group[rank]->Meet({}, {}).empty());
      }
      EXPECT_TRUE(said) << "rank " << rank << " went on with what did not come";
    };
    std::vector<std::thread> threads;
    for (const size_t rank : {0, 1, 2}) threads.emplace_back(run, rank);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(why, "rank 4 has waited 0.3 s for rank 6 (in step 7, after op sum)");
  }
}

}  // namespace
}  // namespace fathom
