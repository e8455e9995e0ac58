// Numbers on their way to a GPU and back. Needs one: skipped elsewhere.
#include "cuda/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <numeric>
#include <span>
#include <vector>

namespace fathom {
namespace {

using Numbers = std::vector<int32_t>;

Numbers From(int32_t first, size_t count) {
  Numbers numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = CudaDevice::Open(0);
    if (!device.ok()) GTEST_SKIP() << "not run: " << device.status().message();
    device_ = std::move(device).value();
  }
  // `count` numbers of `memory`, from number `first` on.
  static TensorView View(const DeviceMemory& memory, size_t first, size_t count) {
    return TensorView(memory.data() + first * sizeof(int32_t), DType::kI32,
                      {static_cast<int64_t>(count)});
  }
  void Upload(const TensorView& to, const Numbers& from) {
    device_->Upload(to, std::as_bytes(std::span(from)));
  }
  void Download(Numbers& to, const TensorView& from) {
    device_->Download(std::as_writable_bytes(std::span(to)), from);
  }
  Numbers Read(const TensorView& from) {
    Numbers to(static_cast<size_t>(from.elements()), -1);
    Download(to, from);
    device_->stream().Synchronize();
    return to;
  }

  std::unique_ptr<CudaDevice> device_;
};

TEST(OpenCudaDevice, RefusesAGpuThatIsNotThere) {
  const auto device = CudaDevice::Open(1023);
  ASSERT_FALSE(device.ok());
  const std::string& message = device.status().message();
  EXPECT_TRUE(message.starts_with("--gpu 1023: this machine has ") ||
              message.starts_with("--device cuda: "))
      << message;
}

TEST_F(CudaDeviceTest, MemoryIsZeroed) {
  const auto memory = device_->Allocate(4 << 20);
  EXPECT_EQ(Read(View(*memory, 0, 1 << 20)), Numbers(1 << 20, 0));
}

// More than a scatter takes, of every small size; `from` may change at once.
TEST_F(CudaDeviceTest, SmallUploadsArriveInOrder) {
  const auto memory = device_->Allocate(1 << 20);
  Numbers expected(1 << 18, 0), from;
  size_t at = 0;
  for (size_t count = 1; count < 300; ++count) {
    from = From(static_cast<int32_t>(1000 * count), count);
    Upload(View(*memory, at, count), from);
    std::copy(from.begin(), from.end(), expected.begin() + static_cast<ptrdiff_t>(at));
    std::fill(from.begin(), from.end(), -7);
    at += count / 2;  // the next overlaps the second half of this one, and wins
  }
  EXPECT_EQ(Read(View(*memory, 0, expected.size())), expected);
}

// Several times the ring that uploads are staged in, beside small ones.
TEST_F(CudaDeviceTest, LargeUploadsGoRoundTheRing) {
  constexpr size_t kCount = (UploadStaging::kChunk * 3 + 64) / sizeof(int32_t), kSmall = 100;
  const auto memory = device_->Allocate((kCount + kSmall) * sizeof(int32_t));
  for (int32_t round = 0; round < 8; ++round) {
    const Numbers large = From(round, kCount), small = From(-1000 * round, kSmall);
    Upload(View(*memory, kCount, kSmall), small);
    Upload(View(*memory, 0, kCount), large);
    Upload(View(*memory, 0, 1), {-round});
    Numbers expected = large;
    expected[0] = -round;
    EXPECT_EQ(Read(View(*memory, 0, kCount)), expected);
    EXPECT_EQ(Read(View(*memory, kCount, kSmall)), small);
  }
}

// Downloads of every size through a ring that they do not fit in at once, read a mark later.
TEST_F(CudaDeviceTest, DownloadsAreThereOnceTheirMarkHasPassed) {
  constexpr size_t kCount = size_t{6} << 20;  // 24 MiB: three times the ring
  const auto memory = device_->Allocate(kCount * sizeof(int32_t));
  const Numbers all = From(0, kCount);
  Upload(View(*memory, 0, kCount), all);
  EXPECT_EQ(Read(View(*memory, 0, kCount)), all);
  struct Step {
    Numbers few, many;
    size_t first;
    uint64_t mark;
  };
  std::deque<Step> steps;
  for (size_t i = 0; i < 300; ++i) {
    Step& step = steps.emplace_back(Numbers(1 + i % 9), Numbers(1 + i * 1733), i * 11, 0);
    Download(step.few, View(*memory, step.first, step.few.size()));
    Download(step.many, View(*memory, step.first, step.many.size()));
    step.mark = device_->Mark();
    if (steps.size() < 3) continue;
    const Step& first = steps.front();
    device_->WaitFor(first.mark);
    const auto begin = static_cast<int32_t>(first.first);
    EXPECT_EQ(first.few, From(begin, first.few.size()));
    EXPECT_EQ(first.many, From(begin, first.many.size()));
    steps.pop_front();
  }
  device_->stream().Synchronize();  // the last steps' downloads, while they have a place
}

TEST_F(CudaDeviceTest, WhatIsNotToBeRecordedIsCalledEachTime) {
  EXPECT_TRUE(device_->records());
  device_->RecordNothing();
  EXPECT_FALSE(device_->records());
  int calls = 0;
  for (int i = 0; i < 3; ++i) device_->RecordOrReplay(/*key=*/1, [&] { ++calls; });
  EXPECT_EQ(calls, 3);
}

TEST_F(CudaDeviceTest, TheLastPieceIsUsedAgain) {
  const auto kept = device_->Allocate(5000);
  std::byte* const at = device_->Allocate(100 << 20)->data();
  const auto again = device_->Allocate(3000);
  EXPECT_EQ(again->data(), at);
  EXPECT_GE(at, kept->data() + 5000);
  EXPECT_EQ(Read(View(*again, 0, 750)), Numbers(750, 0));
}

}  // namespace
}  // namespace fathom
