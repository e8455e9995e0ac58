#include "base/thread_bytes.h"

#include <gtest/gtest.h>

#include <new>
#include <string>
#include <thread>
#include <vector>

namespace fathom {
namespace {

// Calls of the operators themselves, of which a compiler leaves out none.
TEST(ThreadBytes, CountEveryFormOfNew) {
  const int64_t before = ThreadBytes();
  void* const arrays[] =
      {operator new(50'000), operator new[](50'000), operator new(50'000, std::nothrow),
                                                     operator new[](50'000, std::nothrow)};
  EXPECT_GE(ThreadBytes() - before, 200'000);
  EXPECT_LE(ThreadBytes() - before, 201'000);
  std::vector<std::string> strings(100, std::string(1000, 'x'));
  EXPECT_GE(ThreadBytes() - before, 300'000);
  strings = std::vector<std::string>();
  operator delete(arrays[0]);
  operator delete[](arrays[1]);
  operator delete (arrays[2], size_t{50'000});
  operator delete[](arrays[3], std::nothrow);
  EXPECT_EQ(ThreadBytes(), before);
}

TEST(ThreadBytes, AreOfTheThread) {
  void* const block = operator new(50'000);
  std::thread([] { EXPECT_LT(ThreadBytes(), 10'000); }).join();
  operator delete(block);
}

TEST(ThreadBytes, ThePeakIsTheMostSinceItWasAskedFor) {
  ThreadPeak();
  const int64_t before = ThreadBytes();
  operator delete(operator new(50'000));
  EXPECT_GE(ThreadPeak() - before, 50'000);
  EXPECT_LT(ThreadPeak() - before, 1000);
}

}  // namespace
}  // namespace fathom
