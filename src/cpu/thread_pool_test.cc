#include "cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <latch>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "cpu/cpu_count.h"

namespace fathom {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 8));

TEST_P(ThreadPoolTest, CoversEachIndexOnceInWholeGrains) {
  ThreadPool pool(GetParam());
  ASSERT_EQ(pool.threads(), GetParam());
  for (const int64_t n : {0, 1, 2, 7, 64, 1000}) {
    for (const int64_t grain : {1, 3, 64, 5000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
      std::atomic<int> calls{0};
      pool.ParallelFor(n, grain, [&](int64_t begin, int64_t end, int thread) {
        EXPECT_TRUE(thread >= 0 && thread < GetParam());
        EXPECT_EQ(begin % grain, 0);
        EXPECT_TRUE(end == n || (end - begin) % grain == 0);
        EXPECT_LT(begin, end);
        ++calls;
        for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
      });
      EXPECT_TRUE(std::all_of(hits.begin(), hits.end(), [](const auto& h) { return h == 1; }));
      EXPECT_EQ(calls.load() == 0, n == 0);
    }
  }
}

// What a body writes is visible to the caller, and what the caller writes to the next bodies.
TEST_P(ThreadPoolTest, ManySmallCalls) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> values(64, 0);
  for (int64_t round = 0; round < 5000; ++round) {
    pool.ParallelFor(64, 1 + round % 9, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += i;
    });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), 63 * 32);
    std::fill(values.begin(), values.end(), 0);
  }
}

TEST_P(ThreadPoolTest, NoTwoRangesShareAThreadNumberAtATime) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> active(static_cast<size_t>(GetParam()));
  pool.ParallelFor(2000, 1, [&](int64_t, int64_t, int thread) {
    EXPECT_EQ(active[static_cast<size_t>(thread)]++, 0);
    --active[static_cast<size_t>(thread)];
  });
}

// Each body waits until the others are there: only that many threads at once can end it.
TEST_P(ThreadPoolTest, AllThreadsTakePart) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> waiting{GetParam()};
    pool.ParallelFor(GetParam(), 1, [&](int64_t, int64_t, int) {
      --waiting;
      while (waiting > 0) std::this_thread::yield();
    });
  }
}

TEST(ThreadPool, ComesAndGoes) {
  for (int i = 0; i < 100; ++i) {
    ThreadPool pool(3);
    if (i % 2 == 0) pool.ParallelFor(3, 1, [](int64_t, int64_t, int) {});
  }
}

// Which threads of a pool take part where every one of them could.
std::set<int> ThreadsOf(ThreadPool& pool, int64_t expected) {
  std::mutex mutex;
  std::set<int> threads;
  std::latch here(expected);
  pool.ParallelFor(expected, 1, [&](int64_t, int64_t, int thread) {
    {
      std::lock_guard lock(mutex);
      threads.insert(thread);
    }
    if (expected <= pool.threads()) here.arrive_and_wait();
  });
  return threads;
}

TEST(ThreadPool, HelpersComeWhileCoresThatPoolsShareAreFree) {
  const auto cores = std::make_shared<SharedCores>(3);
  ThreadPool one(3, cores), other(3, cores);
  EXPECT_EQ(ThreadsOf(one, 3), (std::set{0, 1, 2}));
  std::latch begun(1), done(1);
  std::thread caller([&] {
    other.ParallelFor(1, 1, [&](int64_t, int64_t, int) {
      begun.count_down();
      done.wait();
    });
  });
  begun.wait();
  EXPECT_EQ(ThreadsOf(one, 2).size(), 2u) << "a core for one helper";
  ThreadPool third(2, cores);
  std::latch third_begun(1);
  std::thread third_caller([&] {
    third.ParallelFor(1, 1, [&](int64_t, int64_t, int) {
      third_begun.count_down();
      done.wait();
    });
  });
  third_begun.wait();
  EXPECT_EQ(ThreadsOf(one, 100), (std::set{0})) << "a core for the caller alone";
  done.count_down();
  caller.join();
  third_caller.join();
  EXPECT_EQ(ThreadsOf(one, 3), (std::set{0, 1, 2})) << "all are given back";
}

// All workers look on when the job comes, and would take part.
TEST(ThreadPool, NoMoreHelpersComeThanThereAreCoresFor) {
  const auto cores = std::make_shared<SharedCores>(4);
  ThreadPool pool(4, cores);
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(ThreadsOf(pool, 4).size(), 4u);
    ASSERT_EQ(cores->Take(1), 1);  // another caller and its helper: two are left
    std::mutex mutex;
    std::set<int> threads;
    pool.ParallelFor(50, 1, [&](int64_t, int64_t, int thread) {
      const std::lock_guard lock(mutex);
      threads.insert(thread);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    });
    EXPECT_LE(threads.size(), 2u);
    cores->GiveBack(1);
  }
}

// What a pool whose work comes a piece a millisecond takes of the cores, where others have so many
// of two meanwhile.
double CpuSeconds(int others) {
  const auto cores = std::make_shared<SharedCores>(2);
  ThreadPool pool(2, cores);
  const std::clock_t begin = std::clock();
  for (int i = 0; i < 200; ++i) {
    pool.ParallelFor(2, 1, [](int64_t, int64_t, int) {});
    if (others > 0) {
      EXPECT_EQ(cores->Take(others - 1), others - 1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (others > 0) cores->GiveBack(others - 1);
  }
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

TEST(ThreadPool, SleepsAtOnceWhereOthersHaveAllCores) {
  EXPECT_LT(CpuSeconds(/*others=*/2), 0.7 * CpuSeconds(/*others=*/0));
}

TEST(ThreadPool, DefaultIsEveryUsableCpu) {
  EXPECT_GE(UsableCpus(), 1);
  EXPECT_EQ(ThreadPool(0).threads(), UsableCpus());
}

TEST(ThreadPoolDeathTest, NestedUse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto nest = [] {
    ThreadPool pool(2);
    pool.ParallelFor(
        1, 1, [&](int64_t, int64_t, int) { pool.ParallelFor(1, 1, [](int64_t, int64_t, int) {}); });
  };
  EXPECT_DEATH(nest(), "within a body");
  EXPECT_DEATH(ThreadPool(-1), "threads");
}

TEST(CpuCount, ReadsQuotas) {
  EXPECT_EQ(QuotaCpus("max 100000"), 0);
  EXPECT_EQ(QuotaCpus("200000 100000"), 2);
  EXPECT_EQ(QuotaCpus("150000 100000"), 2);
  EXPECT_EQ(QuotaCpus("50000 100000"), 1);
  EXPECT_EQ(QuotaCpus("-1 100000"), 0);
  EXPECT_EQ(QuotaCpus("100000 0"), 0);
  EXPECT_EQ(QuotaCpus("100000"), 0);
  EXPECT_EQ(QuotaCpus("12x 100000"), 0);
  EXPECT_EQ(QuotaCpus(" "), 0);
  EXPECT_EQ(QuotaCpus(""), 0);
}

}  // namespace
}  // namespace fathom
