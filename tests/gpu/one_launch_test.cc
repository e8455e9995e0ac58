// Small messages between ranks, all of which are blocks of one launch on one GPU: the sum in the
// order of ranks, the bits of rms_norm, and epochs, over many rounds of other sizes.
#include <gtest/gtest.h>

#include <string_view>
#include <thread>

#include "base/rng.h"
#include "ops/cuda_ops.h"
#include "ops/testing.h"
#include "tests/gpu/one_launch.h"
#include "tests/gpu/test_peers.h"

namespace fathom {
namespace {

constexpr int64_t kMostTokens = 8;
constexpr int kRounds = 24;

class OneLaunchTest : public PeersTest {
 protected:
  void SetUp() override {
    PeersTest::SetUp();
    if (peers_ != nullptr) peers_->device(0).BindThread();
  }
  CudaDevice& device() { return peers_->device(0); }
  PeersOnOneGpu& peers() { return static_cast<PeersOnOneGpu&>(*peers_); }
  TensorView Make(DType type, std::initializer_list<int64_t> shape) {
    const size_t bytes = static_cast<size_t>(TensorView(nullptr, type, shape).elements());
    memory_.push_back(device().Allocate(bytes * ByteSize(type)));
    return TensorView(memory_.back()->data(), type, shape);
  }
  template <class T>
  void Upload(const TensorView& to, const std::vector<T>& numbers) {
    device().Upload(to, std::as_bytes(std::span(numbers)));
    device().stream().Synchronize();
  }
  template <class T>
  std::vector<T> Download(const TensorView& from) {
    std::vector<T> numbers(static_cast<size_t>(from.elements()));
    device().Download(std::as_writable_bytes(std::span(numbers)), from);
    device().stream().Synchronize();
    return numbers;
  }
  void Check(int64_t width);
  std::vector<AllReduceNormArgs> MakeSums(int64_t width, const TensorView& live,
                                          const TensorView& weight);
  // What each rank has told the host that it waits for.
  void ExpectMeetings(std::string_view op, int64_t tokens, int64_t width, uint32_t number) {
    device().stream().Synchronize();
    for (int rank = 0; rank < count(); ++rank) {
      const Meeting last = *peers_->of(rank).LastMeeting();
      EXPECT_EQ(last.op, op) << rank;
      EXPECT_EQ(last.tokens, tokens) << rank;
      EXPECT_EQ(last.width, width) << rank;
      EXPECT_EQ(last.number, number) << rank;
    }
  }
  uint32_t number_ = 0;  // of meetings

 private:
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
};
INSTANTIATE_TEST_SUITE_P(OneGpu, OneLaunchTest, testing::Values(2, 3, 8));

// Of very different sizes, so that another order of sums has other bits.
std::vector<BF16> Part(Rng& rng, int64_t n) {
  std::vector<BF16> part;
  for (int64_t i = 0; i < n; ++i)
    part.push_back(ToBF16(rng.Normal() * (i % 3 == 0 ? 1e3f : 0.01f)));
  return part;
}

std::vector<AllReduceNormArgs> OneLaunchTest::MakeSums(int64_t width, const TensorView& live,
                                                       const TensorView& weight) {
  std::vector<AllReduceNormArgs> ranks;
  for (int rank = 0; rank < count(); ++rank) {
    ranks.push_back({.norm = {.x = Make(DType::kBF16, {kMostTokens, width}),
                              .residual = Make(DType::kF32, {kMostTokens, width}),
                              .weight = weight,
                              .eps = 1e-6f,
                              .live = live,
                              .out = Make(DType::kBF16, {kMostTokens, width})}});
  }
  return ranks;
}

void OneLaunchTest::Check(int64_t width) {
  Rng rng(11, static_cast<uint64_t>(width));
  const TensorView live = Make(DType::kI32, {1}), weight = Make(DType::kF32, {width});
  Upload(weight, Normals(width, 3));
  const int64_t most = kMostTokens * width;
  std::vector<AllReduceNormArgs> ranks = MakeSums(width, live, weight);
  RmsNormArgs one = ranks[0].norm;
  one.x = Make(DType::kBF16, {kMostTokens, width});
  one.residual = Make(DType::kF32, {kMostTokens, width});
  one.out = Make(DType::kBF16, {kMostTokens, width});
  const auto bytes = static_cast<int64_t>(SumNormInOneLaunchBytes(ranks.size()));
  const TensorView workspace = Make(DType::kU8, {bytes});
  auto* const views = peers().views();
  const cudaStream_t stream = device().stream().get();
  OpContext context{device().stream(), {}};
  for (int round = 0; round < kRounds; ++round) {
    const auto count = static_cast<int32_t>(rng.Below(kMostTokens + 1));
    const bool begins = round % 3 == 0;
    std::vector<float> sum(static_cast<size_t>(most)), before = Normals(most, 100 + round);
    for (AllReduceNormArgs& rank : ranks) {
      const std::vector<BF16> part = Part(rng, most);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += ToFloat(part[i]);
      Upload(rank.norm.x, part);
      Upload(rank.norm.residual, before);
      rank.begins = begins;
    }
    std::vector<BF16> rounded;
    for (const float x : sum) rounded.push_back(ToBF16(x));
    Upload(one.x, rounded);
    Upload(one.residual, begins ? std::vector<float>(before.size()) : before);
    Upload(live, std::vector{count});
    SumNormInOneLaunch(views, this->count(), ranks, workspace.data(), stream);
    if (count > 0) {
      ExpectMeetings("all_reduce_norm", kMostTokens, width, ++number_);
    }
    MeetInOneLaunch(views, this->count(), WaitBits(MeetingOp::kCombine, round, 1 << 20), stream);
    ExpectMeetings("combine", round, (1 << 20) - 1, ++number_);
    CudaPortableOps(Fp8Activations::kExact).rms_norm(context, one);
    const auto live_numbers = static_cast<size_t>(count * width);
    const auto residual = Download<float>(one.residual);
    const auto normed = Download<BF16>(one.out);
    for (const AllReduceNormArgs& rank : ranks) {
      const auto got = Download<float>(rank.norm.residual);
      const auto out = Download<BF16>(rank.norm.out);
      for (size_t i = 0; i < got.size(); ++i) {
        const bool is_live = i < live_numbers;
        ASSERT_EQ(got[i], is_live ? residual[i] : before[i]) << "round " << round << ", " << i;
        if (is_live) ASSERT_EQ(out[i].bits, normed[i].bits) << "round " << round << ", " << i;
      }
    }
  }
}

TEST_P(OneLaunchTest, SmallSumsHaveTheBitsOfOneRanksNorm) {
  for (const int64_t width : {256, 2048, 7168}) Check(width);
}

// While it waits the host knows for what, and that the others have not come.
TEST_P(OneLaunchTest, WhoWaitsHasToldTheHostWhatFor) {
  constexpr int64_t kWidth = 2048;
  const TensorView live = Make(DType::kI32, {1}), weight = Make(DType::kF32, {kWidth});
  const auto bytes = static_cast<int64_t>(SumNormInOneLaunchBytes(1));
  const TensorView workspace = Make(DType::kU8, {bytes});
  const std::vector<AllReduceNormArgs> ranks = MakeSums(kWidth, live, weight);
  Upload(live, std::vector{3});
  // On a thread of its own: under compute-sanitizer the launch itself may wait.
  std::thread host([&] {
    while (peers_->of(0).LastMeeting()->op.empty()) std::this_thread::yield();
    EXPECT_EQ(peers_->of(0).LastMeeting()->number, 1u);
    for (int rank = 1; rank < count(); ++rank) {
      EXPECT_EQ(peers_->of(rank).LastMeeting()->op, "") << rank;
    }
    peers().GiveUp();
  });
  SumNormInOneLaunch(peers().views(), count(), std::span(ranks).first(1), workspace.data(),
                     device().stream().get());
  device().stream().Synchronize();
  host.join();
  EXPECT_EQ(peers_->of(0).LastMeeting()->op, "all_reduce_norm");
}

}  // namespace
}  // namespace fathom
