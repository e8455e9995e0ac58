#include "checkpoint/read_window.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

namespace fathom {
namespace {

constexpr uint64_t kTensorBytes = 10;

// Three ranks, the last of them slow: none is further ahead than the window when it begins to read,
// and each tensor has one rank that is the last.
TEST(ReadWindow, FastRanksWaitForTheSlowest) {
  constexpr int kRanks = 3, kTensors = 60;
  constexpr uint64_t kWindow = 4 * kTensorBytes;
  ReadWindow window(std::vector<int>(kRanks, 0), kWindow);
  std::array<std::atomic<uint64_t>, kRanks> passed = {};
  std::array<std::atomic<int>, kTensors> lasts = {};
  std::atomic<uint64_t> furthest = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      for (std::atomic<int>& last : lasts) {
        EXPECT_TRUE(window.Wait(rank).ok());
        const uint64_t mine = passed[rank], slow = passed[kRanks - 1];
        EXPECT_LE(mine, slow + kWindow);
        if (mine > slow && mine - slow > furthest) furthest = mine - slow;
        if (rank == kRanks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        passed[rank] += kTensorBytes;  // before the window knows, so that nobody seems further back
        last += window.Pass(rank, kTensorBytes);
      }
      window.Leave(rank, Status());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::atomic<int>& last : lasts) EXPECT_EQ(last, 1);
  EXPECT_GT(furthest, 0u);
}

TEST(ReadWindow, ItsEdge) {
  ReadWindow window({0, 0}, 2 * kTensorBytes);
  EXPECT_FALSE(window.Pass(0, kTensorBytes));
  EXPECT_FALSE(window.Pass(0, kTensorBytes));
  EXPECT_TRUE(window.Wait(0).ok());  // it may be as far ahead as this
  EXPECT_FALSE(window.Pass(0, kTensorBytes));
  std::atomic<bool> went_on = false;
  std::thread waits([&] {
    EXPECT_TRUE(window.Wait(0).ok());
    went_on = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(went_on);
  EXPECT_TRUE(window.Pass(1, kTensorBytes));
  waits.join();
}

TEST(ReadWindow, StagesDoNotWaitForEachOther) {
  ReadWindow window({0, 1, 1}, kTensorBytes);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(window.Wait(1).ok());
    EXPECT_FALSE(window.Pass(1, kTensorBytes));
    EXPECT_TRUE(window.Wait(2).ok());
    EXPECT_TRUE(window.Pass(2, kTensorBytes));
  }
  window.Leave(1, Status());
  window.Leave(2, Status());
  EXPECT_TRUE(window.Wait(0).ok());
  EXPECT_TRUE(window.Pass(0, kTensorBytes));  // it has its stage for itself
}

// The rank that the others wait for leaves; so does one of another stage.
TEST(ReadWindow, AFailureEndsTheWaitingOfAll) {
  for (const int failing : {1, 2}) {
    ReadWindow window({0, 0, 1}, kTensorBytes);
    window.Pass(0, 2 * kTensorBytes);
    std::thread waits([&] { EXPECT_EQ(window.Wait(0).message(), "no memory on rank"); });
    window.Leave(failing, ResourceExhausted("no memory on rank"));
    waits.join();
    window.Leave(0, Internal("a later one"));
    EXPECT_EQ(window.Wait(3 - failing).message(), "no memory on rank");
  }
}

TEST(ReadWindow, NobodyWaitsForARankThatHasLeft) {
  ReadWindow window({0, 0}, kTensorBytes);
  window.Pass(0, 2 * kTensorBytes);
  std::thread waits([&] { EXPECT_TRUE(window.Wait(0).ok()); });
  window.Leave(1, Status());
  waits.join();
  EXPECT_TRUE(window.Pass(0, kTensorBytes));
}

TEST(ReadWindow, WhoReadsAloneNeedsNone) {
  const ReadWindow::Reader alone;
  EXPECT_TRUE(alone.Wait().ok());
  EXPECT_TRUE(alone.Pass(kTensorBytes));
}

}  // namespace
}  // namespace fathom
