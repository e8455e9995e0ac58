#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>

#include "base/bounded_queue.h"
#include "base/disk_reads.h"
#include "base/first_failure.h"
#include "base/machine_memory.h"
#include "base/mmap.h"
#include "base/printable.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/test_folder.h"
#include "base/thread_priority.h"

namespace fathom {
namespace {

Result<int> Half(int n) {
  if (n % 2 != 0) return InvalidArgument("{} is odd", n);
  return n / 2;
}

Result<int> Quarter(int n) {
  return TRY(Half(TRY(Half(n))));
}

TEST(Status, TryPassesErrorsUp) {
  EXPECT_EQ(Quarter(8).value(), 2);
  EXPECT_EQ(Quarter(6).status().message(), "3 is odd");
  EXPECT_EQ(Quarter(6).status().WithContext("quarter").ToString(),
            "invalid argument: quarter: 3 is odd");
}

TEST(StatusDeathTest, ValueOfAnErrorIsABug) {
  EXPECT_DEATH((void)Half(3).value(), "value\\(\\) of an error: invalid argument: 3 is odd");
}

// The known answers of the authors' Random123 distribution (kat_vectors).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, NormalHasUnitVariance) {
  Rng rng(1);
  double sum = 0, squares = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double x = rng.Normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.02);
  EXPECT_NEAR(squares / kDraws, 1, 0.03);
}

TEST(MappedFile, ReadsAndRefuses) {
  const std::string path = testing::TempDir() + "fathom_mapped";
  std::ofstream(path) << "latent";
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(static_cast<char>(file->bytes()[2]), 't');
  EXPECT_EQ(MappedFile::Open(path + ".absent").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(MappedFile::Open("/").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadFile(path, 5).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(ReadFile(path, 6).value(), "latent");
  const TestFolder folder;
  const std::string fifo = folder.path() + "/fifo";  // which no one writes
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::Open(fifo).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadFile(fifo, 6).status().code(), StatusCode::kInvalidArgument);
}

// What is dropped from the page cache must come from disk again; what is not, need not.
TEST(MappedFile, DropsFromThePageCacheWhereAsked) {
  constexpr int64_t kBytes = 8 << 20;
  const TestFolder folder;
  folder.Write("weights", std::string(kBytes, 'w'));
  const std::string path = folder.path() + "/weights";
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(fsync(fd), 0);  // what is not on disk stays
  close(fd);
  const MappedFile file = MappedFile::Open(path).value();
  const auto read = [&] {
    const int64_t before = DiskBytesRead().value_or(0);
    EXPECT_EQ(std::ranges::count(file.bytes(), std::byte{'w'}), kBytes);
    return DiskBytesRead().value_or(0) - before;
  };
  (void)read();
  file.Drop(file.bytes(), /*from_cache=*/false);
  EXPECT_LT(read(), kBytes / 2);
  file.Drop(file.bytes(), /*from_cache=*/true);
  const int64_t again = read();
  if (again == 0) GTEST_SKIP() << "its file system is in memory, or not counted";
  EXPECT_GE(again, kBytes * 3 / 4);
  EXPECT_LE(again, kBytes * 5 / 4);
}

TEST(BoundedQueue, RefusesWhenFullAndDrainsAfterClose) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(4));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.TryPop(), 2);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(BoundedQueue, PopWaitsForAnotherThread) {
  BoundedQueue<int> queue(1);
  std::thread producer([&] { EXPECT_TRUE(queue.TryPush(7)); });
  EXPECT_EQ(queue.Pop(), 7);
  producer.join();
}

TEST(FirstFailure, IsSeenWholeByOtherThreads) {
  const std::string one(100, '1'), two(100, '2');
  for (int round = 0; round < 200; ++round) {
    FirstFailure failure;
    std::thread first([&] { failure.Set(Internal("{}", one)); });
    std::thread second([&] { failure.Set(Internal("{}", two)); });
    while (!failure.failed()) std::this_thread::yield();
    const std::string seen = failure.status().message();
    EXPECT_TRUE(seen == one || seen == two) << seen;
    first.join();
    second.join();
    EXPECT_EQ(failure.status().message(), seen);
  }
}

TEST(MachineMemory, Limits) {
  EXPECT_EQ(MemoryLimit("max"), INT64_MAX);
  EXPECT_EQ(MemoryLimit(""), INT64_MAX);
  EXPECT_EQ(MemoryLimit("9223372036854771712"), INT64_MAX);
  EXPECT_EQ(MemoryLimit("1073741824"), 1 << 30);
  EXPECT_GT(UsableMemoryBytes(), 1 << 20);
}

TEST(Counted, OneIsSingular) {
  EXPECT_EQ(Counted(1, "request"), "1 request");
  EXPECT_EQ(Counted(0, "request"), "0 requests");
  EXPECT_EQ(Counted(2, "token"), "2 tokens");
}

TEST(Printable, ReplacesWhatIsNoUtf8) {
  EXPECT_EQ(Printable("\xff"
                      "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"),
            "?a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
  EXPECT_EQ(Printable("\xc3"), "?");
  EXPECT_EQ(Printable("\xc0\x80"), "??");            // overlong
  EXPECT_EQ(Printable("\xed\xa0\x80"), "???");       // a surrogate
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "????");  // beyond Unicode
  EXPECT_EQ(Printable("\xe2\x82"
                      "a"),
            "??a");
}

TEST(Printable, StopsControlCharacters) {
  EXPECT_EQ(Printable("a\x1b[31m\tb\x7f"), "a?[31m?b?");
  EXPECT_EQ(PrintableLines("a\x1b\tb\n"), "a?\tb\n");
  EXPECT_EQ(Printable("gr\xC3\xBC\xC3\x9F \xC2\x9B"
                      "5m"),
            "gr\xC3\xBC\xC3\x9F ?5m");
  EXPECT_EQ(Printable(std::string(300, 'n')), std::string(200, 'n') + "...");
  EXPECT_EQ(Printable("ab\xC3\xBC", 3), "ab...");  // no half characters
}

TEST(ThreadPriority, IsLoweredOfOneThreadAlone) {
  constexpr int kMost = 19;
  const int before = getpriority(PRIO_PROCESS, 0);
  int lowered = 0;
  std::thread([&] {
    LowerThisThread(3, "are tests");
    lowered = getpriority(PRIO_PROCESS, 0);
  }).join();
  EXPECT_EQ(lowered, std::min(before + 3, kMost));
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), before);
}

}  // namespace
}  // namespace fathom
