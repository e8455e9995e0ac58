// Once the engine runs, a step neither allocates on the device nor waits for it: counted in the
// calls that CUDA sees. Needs a GPU and CUPTI.
#include "tests/gpu/cuda_calls.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "cuda/device.h"
#include "engine/assembly.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "model/model.h"
#include "parallel/peer.h"

namespace fathom {
namespace {

constexpr int32_t kSlots = 8, kMaxModelLen = 1024, kChunk = 256;

bool Allocates(std::string_view name) {
  constexpr std::array kBeginnings = {"cudaMalloc",       "cudaFree",          "cudaHostAlloc",
                                      "cudaHostRegister", "cuMemAlloc",        "cuMemFree",
                                      "cuMemCreate",      "cuMemMap",          "cuMemUnmap",
                                      "cuMemRelease",     "cuMemAddress",      "cuMemSetAccess",
                                      "cuMemHostAlloc",   "cuMemHostRegister", "cuMemPool",
                                      "cudaGraphInstant", "cuGraphInstant",    "cudaEventCreate",
                                      "cuEventCreate",    "cudaStreamCreate",  "cuStreamCreate"};
  return std::any_of(kBeginnings.begin(), kBeginnings.end(),
                     [&](std::string_view beginning) { return name.starts_with(beginning); });
}

// Waits for all that was enqueued. cudaEventSynchronize is counted apart: the engine calls it once
// for a step that has ended. Copies that are not asynchronous wait too.
bool Waits(std::string_view name) {
  const bool copies = name.starts_with("cudaMemcpy") || name.starts_with("cudaMemset") ||
                      name.starts_with("cuMemcpy");
  return name.find("DeviceSynchronize") != name.npos || name.find("CtxSynchronize") != name.npos ||
         name.find("StreamSynchronize") != name.npos || (copies && name.find("Async") == name.npos);
}

// Waits for what the engine delivers.
class Outputs {
 public:
  void Take(const std::vector<RequestOutput>& outputs) {
    const std::lock_guard lock(mutex_);
    for (const RequestOutput& output : outputs) {
      tokens_ += static_cast<int64_t>(output.tokens.size());
      if (!output.finish) continue;
      EXPECT_TRUE(output.error.ok()) << output.error.message();
      ++ended_;
    }
    changed_.notify_one();
  }
  void WaitForTokens(int64_t tokens) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tokens_ >= tokens; });
  }
  void WaitForEnds(int64_t ended) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ >= ended; });
  }
  int64_t tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t tokens_ = 0, ended_ = 0;  // guarded by mutex_
};

void SubmitAll(Engine& engine, uint64_t first_id, int32_t prompt, int32_t max_tokens) {
  Rng rng(first_id);
  for (uint64_t id = first_id; id < first_id + kSlots; ++id) {
    GenerateRequest request;
    request.id = RequestId{id};
    request.max_tokens = max_tokens;
    for (int32_t i = 0; i < prompt; ++i) {
      request.prompt.push_back(TokenId{static_cast<int32_t>(rng.Below(4000))});
    }
    request.sampling.temperature = id % 2 == 0 ? 0.0f : 0.8f;
    request.sampling.logprobs = id % 4 == 0 ? 5 : -1;
    const Status status = engine.Submit(std::move(request));
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

void ExpectNone(const CudaCalls& calls) {
  for (const auto& [name, count] : calls.counts()) {
    EXPECT_FALSE(Allocates(name)) << name << ": " << count << " calls";
    EXPECT_FALSE(Waits(name)) << name << ": " << count << " calls";
  }
}

class CudaCallsTest : public testing::Test {
 protected:
  // As the program does for several ranks: loading a kernel while another rank's waits could hang.
  static void SetUpTestSuite() { setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0); }
  // CUPTI must be there before CUDA is first used.
  static CudaCalls& Calls() {
    static CudaCalls calls;
    return calls;
  }
  static void ExpectNoneOfSteps(Engine& engine, Outputs& outputs, int ranks);
};

TEST_F(CudaCallsTest, SeesWhatItMustFind) {
  if (const auto device = CudaDevice::Open(0); !device.ok()) {
    GTEST_SKIP() << "not run: " << device.status().message();
  }
  ASSERT_EQ(Calls().missing(), "");
  Calls().Start();
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 1 << 20), cudaSuccess);
  ASSERT_EQ(cudaFree(memory), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  Calls().Stop();
  EXPECT_GE(Calls().Sum(Allocates), 2);
  EXPECT_GE(Calls().Sum(Waits), 2);
}

// Of all ranks together, once requests run.
void CudaCallsTest::ExpectNoneOfSteps(Engine& engine, Outputs& outputs, int ranks) {
  engine.Start();
  SubmitAll(engine, 1, /*prompt=*/600, /*max_tokens=*/8);  // loads kernels of eager steps
  outputs.WaitForEnds(kSlots);

  // Decode: replayed steps.
  const int64_t before = outputs.tokens();
  SubmitAll(engine, 100, /*prompt=*/16, /*max_tokens=*/500);
  outputs.WaitForTokens(before + kSlots * 50);
  const int64_t first_step = engine.Stats().steps;
  Calls().Start();
  outputs.WaitForTokens(before + kSlots * 450);
  Calls().Stop();
  const int64_t steps = engine.Stats().steps - first_step;
  EXPECT_GE(steps, 350);
  // The forward pass, and what samples from it.
  EXPECT_NEAR(static_cast<double>(Calls().counts()["cudaGraphLaunch"]) / ranks, 2 * steps, 8);
  EXPECT_LE(Calls().counts()["cudaEventSynchronize"], ranks * (steps + 4));
  ExpectNone(Calls());
  RecordProperty("decode_steps", static_cast<int>(steps));
  for (const auto& [name, count] : Calls().counts()) {
    fmt::print("{:32} {:6.2f} a step\n", name, static_cast<double>(count) / steps);
  }

  // Prompts that arrive while the engine runs: eager steps.
  outputs.WaitForEnds(2 * kSlots);
  Calls().Start();
  SubmitAll(engine, 200, /*prompt=*/600, /*max_tokens=*/20);
  outputs.WaitForEnds(3 * kSlots);
  Calls().Stop();
  EXPECT_GT(Calls().counts()["cudaLaunchKernelExC"] + Calls().counts()["cudaLaunchKernel"], 0);
  ExpectNone(Calls());
}

TEST_F(CudaCallsTest, StepsNeitherAllocateNorWait) {
  auto device = CudaDevice::Open(0);
  if (!device.ok()) GTEST_SKIP() << "not run: " << device.status().message();
  ASSERT_EQ(Calls().missing(), "");
  const auto checkpoint = Checkpoint::Open("models/tiny-r1");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const auto model =
      Model::Load(*checkpoint, CudaOps(**device, Fp8Activations::kQuantized), **device,
                  {.max_tokens = kChunk + kSlots,
                   .max_rows = kSlots,
                   .max_logit_vectors = kSlots,
                   .max_model_len = kMaxModelLen},
                  nullptr);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const SteadyClock clock;
  Outputs outputs;
  constexpr int32_t kPages = kSlots * kMaxModelLen / kPageTokens;
  Engine engine({.scheduler = {.max_num_seqs = kSlots,
                               .max_num_batched_tokens = kChunk + kSlots,
                               .prefill_chunk = kChunk,
                               .num_pages = kPages,
                               .max_model_len = kMaxModelLen,
                               .absorbed_limit = (*model)->options().absorbed_limit}},
                std::make_unique<ModelExecutor>(
                    **model, **device, ModelExecutorOptions{.num_pages = kPages, .slots = kSlots}),
                &clock, [&](const std::vector<RequestOutput>& o) { outputs.Take(o); });
  ExpectNoneOfSteps(engine, outputs, /*ranks=*/1);
}

TEST_F(CudaCallsTest, StepsOfTwoRanksNeitherAllocateNorWait) {
  std::vector<std::unique_ptr<CudaDevice>> devices;
  std::vector<CudaDevice*> gpus;
  for (const int gpu : {0, 1}) {
    auto device = CudaDevice::Open(gpu);
    if (!device.ok()) GTEST_SKIP() << "not run: needs two GPUs: " << device.status().message();
    gpus.push_back(device->get());
    devices.push_back(*std::move(device));
  }
  ASSERT_EQ(Calls().missing(), "");
  const ParallelLayout layout{.tensor = 2};
  const auto joined = JoinedRanks::Join(layout, PeerCommunicator::Among(gpus));
  ASSERT_TRUE(joined.ok()) << joined.status().message();
  std::vector<EngineRank> ranks;
  for (const int rank : {0, 1}) {
    ranks.push_back({gpus[static_cast<size_t>(rank)], Shard::OfRank(layout, rank, joined->Of(rank)),
                     PeerBytes(layout)});
  }
  auto checkpoint = Checkpoint::Open("models/tiny-r1");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EngineLimits limits{.max_model_len = kMaxModelLen,
                      .max_num_seqs = kSlots,
                      .max_num_batched_tokens = kChunk + kSlots,
                      .prefill_chunk = kChunk,
                      .kv_cache_bytes = int64_t{64} << 20};
  limits.FillDefaults(/*gpu=*/true);
  Outputs outputs;
  auto assembled = AssembleEngine(*checkpoint, CudaOps(*devices[0], Fp8Activations::kQuantized),
                                  ranks, {.limits = limits}, /*progress=*/nullptr,
                                  [&](const std::vector<RequestOutput>& o) { outputs.Take(o); });
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  ExpectNoneOfSteps(*assembled->engine, outputs, /*ranks=*/2);
}

// Not to wait for it, and not to free what it has.
TEST_F(CudaCallsTest, NothingIsAskedOfAGpuThatHasFailed) {
  auto device = CudaDevice::Open(0);
  if (!device.ok()) GTEST_SKIP() << "not run: " << device.status().message();
  ASSERT_EQ(Calls().missing(), "");
  CudaDevice* const gpus[] = {device->get()};
  auto ranks = PeerCommunicator::Group(gpus);
  ASSERT_TRUE(ranks.ok()) << ranks.status().message();
  (*device)->Abandon("a test");
  Calls().Start();
  ranks->clear();
  device->reset();
  Calls().Stop();
  EXPECT_EQ(Calls().Sum([](std::string_view) { return true; }), 0);
}

}  // namespace
}  // namespace fathom
