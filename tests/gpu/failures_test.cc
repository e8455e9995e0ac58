// What a process says that a GPU fails, how it lives on or ends, and whether it leaves a core.
#include <cuda_runtime_api.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "checkpoint/checkpoint.h"
#include "cuda/device.h"
#include "engine/assembly.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "model/model.h"
#include "ops/op_runner.h"
#include "parallel/peer.h"
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
  const Status failure = device->status();
  fmt::print(stderr, "{}\n", failure.message());
  // What follows does nothing, the device's end included, and the first failure stays.
  std::array<float, 4> numbers = {};
  const TensorView at = view(DType::kF32, {4});
  device->BeginStep(8);
  device->Upload(at, std::as_bytes(std::span(numbers)));
  device->Download(std::as_writable_bytes(std::span(numbers)), at);
  bool enqueued = false;
  device->RecordOrReplay(1, [&] { enqueued = true; });
  const uint64_t mark = device->Mark();
  CHECK(device->Passed(mark) && !enqueued);
  device->WaitFor(mark);
  device->stream().Synchronize();
  CHECK(device->status().message() == failure.message());
}

// In a process of its own, of which a fault leaves no CUDA: it ends well.
void LiveThroughAFault() {
  ReadWhereNothingIs();
  std::exit(0);
}

TEST_F(CudaFailureDeathTest, AFaultIsAStatusThatNamesItsStepAndWithSyncItsOp) {
  unsetenv("FATHOM_CUDA_SYNC");
  EXPECT_EXIT(LiveThroughAFault(), testing::ExitedWithCode(0), "illegal memory access .*in step 7");
  setenv("FATHOM_CUDA_SYNC", "1", 1);
  EXPECT_EXIT(LiveThroughAFault(), testing::ExitedWithCode(0),
              "illegal memory access .*in step 7, op silu_mul of BF16 \\[4, 16\\]");
  unsetenv("FATHOM_CUDA_SYNC");
}

// An engine on a GPU that fails while it idles: its next step tells, and no other is run.
void ServeOnAFailingGpu() {
  const auto device = CudaDevice::Open(0).value();
  const Checkpoint checkpoint = Checkpoint::Open("models/tiny-r1").value();
  const auto model = Model::Load(checkpoint, CudaPortableOps(Fp8Activations::kExact), *device,
                                 {.max_tokens = 64, .max_rows = 4, .max_model_len = 256}, nullptr)
                         .value();
  const SteadyClock clock;
  std::promise<RequestOutput> ended;
  Engine engine({.scheduler = {.max_num_seqs = 4,
                               .max_num_batched_tokens = 64,
                               .prefill_chunk = 32,
                               .num_pages = 16,
                               .max_model_len = 256,
                               .absorbed_limit = model->options().absorbed_limit}},
                std::make_unique<ModelExecutor>(*model, *device,
                                                ModelExecutorOptions{.num_pages = 16, .slots = 4}),
                &clock, [&](std::vector<RequestOutput> o) { ended.set_value(std::move(o[0])); });
  const std::array<float, 4> numbers = {};
  device->UploadBytes(reinterpret_cast<void*>(0x1000), std::as_bytes(std::span(numbers)));
  device->stream().get();  // which enqueues it
  std::promise<void> failed;
  engine.OnFailure([&] { failed.set_value(); });
  engine.Start();
  GenerateRequest request;
  request.id = RequestId{1};
  request.prompt = {TokenId{1}, TokenId{2}};
  request.max_tokens = 100;
  CHECK(engine.Submit(request).ok());
  const RequestOutput output = ended.get_future().get();
  CHECK(output.finish == FinishReason::kError && output.tokens.empty());
  fmt::print(stderr, "{}\n", output.error.message());
  failed.get_future().wait();
  request.id = RequestId{2};
  CHECK(engine.Submit(request).code() == StatusCode::kUnavailable);
}

TEST_F(CudaFailureDeathTest, AnEngineEndsItsRequestsAndItself) {
  const auto serve = [] {
    ServeOnAFailingGpu();
    std::exit(0);
  };
  EXPECT_EXIT(serve(), testing::ExitedWithCode(0), "GPU 0: .*illegal memory access .*in step");
}

// An engine over two GPUs.
struct TwoRanks {
  explicit TwoRanks(double step_timeout_s, const ParallelLayout& layout = {.tensor = 2},
                    const Ops& ops = CudaPortableOps(Fp8Activations::kExact)) {
    std::vector<EngineRank> ranks;
    for (int gpu = 0; gpu < 2; ++gpu) devices.push_back(CudaDevice::Open(gpu).value());
    joined =
        JoinedRanks::Join(layout, PeerCommunicator::Among({devices[0].get(), devices[1].get()}))
            .value();
    for (int rank = 0; rank < 2; ++rank) {
      ranks.push_back({devices[static_cast<size_t>(rank)].get(),
                       Shard::OfRank(layout, rank, joined.Of(rank)), /*peer_bytes=*/0});
    }
    EngineLimits limits{.max_model_len = 256, .max_num_seqs = 4};
    limits.FillDefaults(/*gpu=*/true);
    assembled = AssembleEngine(checkpoint, ops, ranks,
                               {.limits = limits, .step_timeout_s = step_timeout_s}, nullptr,
                               [this](std::vector<RequestOutput> o) {
                                 if (!o.back().tokens.empty() && ++outputs == 8)
                                   decodes.set_value();
                                 if (o.back().finish) ended.set_value(std::move(o.back()));
                               })
                    .value();
  }
  void Start() {
    assembled.engine->Start();
    GenerateRequest request;
    request.id = RequestId{1};
    request.prompt = {TokenId{1}, TokenId{2}};
    request.max_tokens = 240;
    CHECK(assembled.engine->Submit(request).ok());
  }
  std::string Error() {
    const RequestOutput output = ended.get_future().get();
    CHECK(output.finish == FinishReason::kError);
    return std::string(output.error.message());
  }

  Checkpoint checkpoint = Checkpoint::Open("models/tiny-r1").value();
  std::vector<std::unique_ptr<CudaDevice>> devices;
  JoinedRanks joined;
  int outputs = 0;
  std::promise<void> decodes;
  std::promise<RequestOutput> ended;
  AssembledEngine assembled;
};

// One of two ranks fails while the other's kernels wait for it: the engine ends.
void ServeOnTwoGpusOfWhichOneFails(const ParallelLayout& layout) {
  TwoRanks two(/*step_timeout_s=*/60, layout);
  const std::array<float, 4> numbers = {};
  two.devices[1]->BindThread();
  two.devices[1]->UploadBytes(reinterpret_cast<void*>(0x1000), std::as_bytes(std::span(numbers)));
  two.devices[1]->stream().get();  // which enqueues it
  two.Start();
  fmt::print(stderr, "{}\n", two.Error());
}

TEST_F(CudaFailureDeathTest, ARankThatFailsLeavesNoOtherWaiting) {
  if (!CudaDevice::Open(1).ok()) GTEST_SKIP() << "needs two GPUs";
  // Of a group, of a group that has nothing to do but to exchange experts' tokens, and of a stage.
  for (const ParallelLayout& layout :
       {ParallelLayout{.tensor = 2}, ParallelLayout{.data = 2, .experts = true},
        ParallelLayout{.pipeline = 2}}) {
    const auto serve = [&] {
      ServeOnTwoGpusOfWhichOneFails(layout);
      std::exit(0);
    };
    // A fault of one GPU is one of those that its memory is mapped into, too.
    EXPECT_EXIT(serve(), testing::ExitedWithCode(0), "GPU [01]: .*illegal memory access .*in step");
  }
}

// One of two ranks does not come to where the other waits for it: the engine ends in time.
void ServeOnTwoGpusOfWhichOneIsLate(bool once_steps_are_replayed) {
  TwoRanks two(/*step_timeout_s=*/2);
  if (once_steps_are_replayed) {
    two.Start();
    two.decodes.get_future().wait();
  }
  const auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::seconds(20)); };
  two.devices[1]->BindThread();
  CHECK(cudaLaunchHostFunc(two.devices[1]->stream().get(), sleep, nullptr) == cudaSuccess);
  const auto begin = std::chrono::steady_clock::now();
  if (!once_steps_are_replayed) two.Start();
  fmt::print(stderr, "{}\n", two.Error());
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(6));
  std::_Exit(0);  // the sleeper is not waited for
}

TEST_F(CudaFailureDeathTest, ARankThatDoesNotComeIsGivenUp) {
  if (!CudaDevice::Open(1).ok()) GTEST_SKIP() << "needs two GPUs";
  // Who waits, and who has not come to where: of each rank, and of a recorded step too.
  constexpr const char* kMeetings =
      "has not ended in 2 s: meetings of the tensor-parallel group: rank 0 is at [0-9]+, "
      "all_[a-z_]+ of .[0-9]+, [0-9]+.; rank 1 is at [0-9]+, all_[a-z_]+ of .[0-9]+, [0-9]+. and "
      "has not come to the next";
  EXPECT_EXIT(ServeOnTwoGpusOfWhichOneIsLate(false), testing::ExitedWithCode(0),
              std::string("GPU [01]: step 0, of 1 row and 2 tokens, ") + kMeetings);
  EXPECT_EXIT(ServeOnTwoGpusOfWhichOneIsLate(true), testing::ExitedWithCode(0),
              std::string("GPU [01]: step [1-9][0-9]*, of 1 row and 1 token, ") + kMeetings);
}

// An op table's embed, but that GPU 1 sleeps behind the call of this number.
struct LateEmbed {
  static inline void (*embed)(OpContext&, const EmbedArgs&);
  static inline int calls_left;

  static void Run(OpContext& context, const EmbedArgs& args) {
    embed(context, args);
    if (Gpu::OfThread().ordinal() != 1 || --calls_left != 0) return;
    const auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::seconds(20)); };
    CHECK(cudaLaunchHostFunc(static_cast<CudaStream&>(context.stream).get(), sleep, nullptr) ==
          cudaSuccess);
  }
};

// One of two ranks hangs before the first request, in the first run of a step or in its record.
void RecordOnTwoGpusOfWhichOneIsLate(int call) {
  Ops ops = CudaPortableOps(Fp8Activations::kExact);
  LateEmbed::embed = std::exchange(ops.embed.run, LateEmbed::Run);
  LateEmbed::calls_left = call;
  const TwoRanks two(/*step_timeout_s=*/2, {.tensor = 2}, ops);
}

TEST_F(CudaFailureDeathTest, AHangWhileStepsAreRecordedIsGivenUp) {
  if (!CudaDevice::Open(1).ok()) GTEST_SKIP() << "needs two GPUs";
  for (const int call : {1, 2}) {
    EXPECT_EXIT(RecordOnTwoGpusOfWhichOneIsLate(call), testing::ExitedWithCode(1),
                "GPU [01]: recording a step, of 1 row and 1 token, has not ended in 2 s: meetings "
                "of the tensor-parallel group: rank 0 is at [0-9]+, all_[a-z_]+ of .[0-9]+, "
                "[0-9]+.; rank 1 is at (none|[0-9]+, all_[a-z_]+ of .[0-9]+, [0-9]+.) and has not "
                "come to the next.*rank 1 does not come back, and is left");
  }
}

void LaunchWhatCannotBe() {
  const auto device = CudaDevice::Open(0).value();
  device->gpu().Check(cudaErrorInvalidConfiguration);
}

TEST_F(CudaFailureDeathTest, ABugStillStopsTheProcess) {
  EXPECT_DEATH(LaunchWhatCannotBe(), "CHECK failed: .*invalid configuration");
}

}  // namespace
}  // namespace fathom
