// How a process ends that a GPU fails: what it says, and whether it leaves a core.
#include <gtest/gtest.h>

#include "cuda/device.h"
#include "ops/op_runner.h"
#include "tensor/out_of_memory.h"

namespace fathom {
namespace {

class CudaFailureDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // CUDA does not live through a fork
    if (!CudaDevice::Open(0).ok()) GTEST_SKIP() << "no GPU";
  }
};

void AskForTooMuch() {
  const auto device = CudaDevice::Open(0).value();
  SetMemoryPlan("weights 1 TiB");
  static_cast<void>(device->Allocate(size_t{1} << 40));
}

TEST_F(CudaFailureDeathTest, OutOfMemoryTellsThePlanAndLeavesNoCore) {
  EXPECT_EXIT(AskForTooMuch(), testing::ExitedWithCode(1),
              "out of memory: the GPU refused 1024.00 GiB, .*; the plan was: weights 1 TiB. Lower "
              "--max-num-seqs");
}

void ReadWhereNothingIs() {
  const auto device = CudaDevice::Open(0).value();
  OpRunner run(CudaPortableOps(Fp8Activations::kExact), *device);
  run.Allocate();
  const auto view = [](DType dtype, std::initializer_list<int64_t> shape) {
    return TensorView(reinterpret_cast<void*>(0x1000), dtype, shape);
  };
  device->BeginStep(7);
  run(run.ops().silu_mul, {.gate_up = view(DType::kBF16, {4, 16}),
                           .live = view(DType::kI32, {1}),
                           .out = view(DType::kBF16, {4, 8})});
  device->WaitFor(device->Mark());
}

TEST_F(CudaFailureDeathTest, AFaultNamesItsStepAndWithSyncItsOp) {
  unsetenv("FATHOM_CUDA_SYNC");
  EXPECT_DEATH(ReadWhereNothingIs(), "illegal memory access .*in step 7");
  setenv("FATHOM_CUDA_SYNC", "1", 1);
  EXPECT_DEATH(ReadWhereNothingIs(),
               "illegal memory access .*in step 7, op silu_mul of BF16 \\[4, 16\\]");
  unsetenv("FATHOM_CUDA_SYNC");
}

}  // namespace
}  // namespace fathom
