// Devices of one process, each driven by a thread of its own: what CUDA keeps of kernels for each
// GPU must not be taken for the process's.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "cuda/device.h"
#include "ops/op_runner.h"

namespace fathom {
namespace {

TEST(KernelSet, SeesEachKernelOnce) {
  KernelSet set;
  std::vector<std::byte> memory(1 << 16);
  // Two by two, kernels that a place of the set is meant for.
  const auto kernel = [&](size_t i) { return memory.data() + i / 2 * 16 + i % 2 * 512 * 16; };
  for (size_t i = 0; i < 200; ++i) EXPECT_TRUE(set.Insert(kernel(i))) << i;
  for (size_t i = 0; i < 200; ++i) EXPECT_FALSE(set.Insert(kernel(i))) << i;
}

constexpr int32_t kTokens = 192, kContext = 256, kHeads = 4, kRounds = 20;

// Attention whose kernel wants more shared memory than CUDA grants without being asked.
class Attention {
 public:
  explicit Attention(int gpu) : device_(CudaDevice::Open(gpu).value()) {
    run_.Allocate();
    q_ = Random({kTokens, kHeads, 192}, 1);
    kv_ = Random({kContext, kHeads, 256}, 2);
    rope_ = Random({kContext, 64}, 3);
    out_ = Tensor(DType::kBF16, {kTokens, kHeads, 128});
    lse_ = Tensor(DType::kF32, {kTokens, kHeads});
    positions_ = Tensor(DType::kI32, {kTokens});
    std::vector<int32_t> positions(kTokens);
    for (int32_t t = 0; t < kTokens; ++t) positions[t] = kContext - kTokens + t;
    device_->Upload(positions_, std::as_bytes(std::span(positions)));
  }

  CudaDevice& device() { return *device_; }
  std::vector<uint16_t> Run() {
    const ContextPiece piece{.begin = 0, .count = kContext, .tokens = kTokens};
    run_(run_.ops().attend_expanded, {.q = q_,
                                      .positions = positions_,
                                      .kv = kv_,
                                      .rope = rope_,
                                      .pieces = {&piece, 1},
                                      .scale = 1 / std::sqrt(192.0f),
                                      .out = out_,
                                      .lse = lse_});
    std::vector<uint16_t> out(static_cast<size_t>(out_.elements()));
    device_->Download(std::as_writable_bytes(std::span(out)), out_);
    device_->stream().Synchronize();
    return out;
  }

 private:
  TensorView Tensor(DType dtype, std::initializer_list<int64_t> shape) {
    const size_t bytes = TensorView(nullptr, dtype, shape).elements() * ByteSize(dtype);
    return TensorView(memory_.emplace_back(device_->Allocate(bytes))->data(), dtype, shape);
  }
  TensorView Random(std::initializer_list<int64_t> shape, unsigned seed) {
    const TensorView tensor = Tensor(DType::kBF16, shape);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<BF16> numbers(static_cast<size_t>(tensor.elements()));
    for (BF16& number : numbers) number = ToBF16(normal(random));
    device_->Upload(tensor, std::as_bytes(std::span(numbers)));
    return tensor;
  }

  std::unique_ptr<CudaDevice> device_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  OpRunner run_{CudaPortableOps(Fp8Activations::kExact), *device_};
  TensorView q_, kv_, rope_, out_, lse_, positions_;
};

class TwoDevicesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!CudaDevice::Open(0).ok()) GTEST_SKIP() << "no GPU";
    // The second of the machine, or another device of the same.
    second_ = CudaDevice::Open(1).ok() ? 1 : 0;
  }
  int second_ = 0;
};

TEST_F(TwoDevicesTest, AThreadForEachAtTheSameTime) {
  std::array<std::vector<std::vector<uint16_t>>, 2> outs;
  {
    std::array<std::jthread, 2> threads;
    for (int i = 0; i < 2; ++i) {
      threads[i] = std::jthread([&, i] {
        Attention attention(i == 0 ? 0 : second_);
        for (int round = 0; round < kRounds; ++round) outs[i].push_back(attention.Run());
      });
    }
  }
  ASSERT_EQ(outs[0].size(), size_t{kRounds});
  for (const auto& of_thread : outs) {
    for (const auto& out : of_thread) EXPECT_EQ(out, outs[0][0]);
  }
}

TEST_F(TwoDevicesTest, OneThreadForBothBindsItselfToEach) {
  Attention first(0), second(second_);
  first.device().BindThread();
  const std::vector<uint16_t> out = first.Run();
  second.device().BindThread();
  EXPECT_EQ(second.Run(), out);
  first.device().BindThread();
  EXPECT_EQ(first.Run(), out);
  second.device().BindThread();  // whose end waits for its stream
}

}  // namespace
}  // namespace fathom
