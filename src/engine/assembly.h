// From a checkpoint, an op table and devices to an engine: memory is planned, weights are loaded,
// and memory is planned again with what they took.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "engine/host_watch.h"
#include "engine/memory_plan.h"
#include "engine/model_executor.h"
#include "engine/step_follower.h"
#include "engine/step_runner.h"
#include "model/model.h"
#include "ops/ops.h"
#include "speculation/speculation.h"
#include "tensor/device.h"

namespace fathom {

// How much an engine takes on.
struct EngineLimits {
  int32_t max_model_len = 0;  // 0: the checkpoint's
  int32_t max_num_seqs = 0;   // 0, here and below: FillDefaults
  int32_t max_num_batched_tokens = 0;
  int32_t prefill_chunk = 0;
  Speculation speculation;     // checked
  int64_t kv_cache_bytes = 0;  // 0: see memory_plan.h
  int32_t max_queue = 1024;
  bool prefix_caching = true;
  bool reuse_decoded = false;       // SchedulerOptions
  bool batch_invariant = true;      // ModelOptions
  double queue_timeout_s = 0;       // 0: none
  size_t request_memory_bytes = 0;  // that a server may hold for requests, in host memory
  size_t grammar_memory_bytes = 0;  // the same, for grammars; to AssembleEngine without compilers

  // What suits the device, where it is 0. A GPU needs more tokens to be busy: V2-Lite in BF16 reads
  // prompts 1.5 times as fast in steps of 8192 tokens as in those of 1024
  // (docs/design/bf16-gemm.md).
  void FillDefaults(bool gpu);
};

struct AssemblyOptions {
  EngineLimits limits;                    // with the defaults filled in
  std::optional<DType> kv_cache;          // MakeKvFormat; nothing: the table's
  std::optional<WeightFormat> quantized;  // what the table makes of weights while they load
  std::optional<SyntheticRouting> synthetic_routing;  // of a benchmark; checked
  double synthetic_acceptance = -1;                   // the same
  double step_timeout_s = ModelExecutorOptions().step_timeout_s;
  Hosts* hosts = nullptr;  // that share the ranks; null: this one has all. Must outlive the engine
};

// A rank: a device, and what of the model is computed on it.
struct EngineRank {
  Device* device = nullptr;
  Shard shard;
  size_t peer_bytes = 0;  // of the device's memory, which its communicators have taken already
};

// Members are destroyed last to first: the engine before what it runs on. The devices must outlive
// them.
struct AssembledEngine {
  std::vector<std::unique_ptr<Model>> models;  // of each rank
  std::unique_ptr<Clock> clock;
  std::unique_ptr<HostWatch> watch;        // of several hosts
  std::unique_ptr<Engine> engine;          // not yet started; of hosts the first one's
  std::unique_ptr<WatchedEngine> watched;  // of several hosts
  std::unique_ptr<StepFollower> follower;  // the other hosts', at work
  RecordedSteps recorded;                  // by the first rank
};

// Refuses, before anything large is allocated or read, limits that make no engine and what memory
// cannot hold. Ranks are loaded at the same time, and progress is the first one's. `ranks`: those
// of this host.
Result<AssembledEngine> AssembleEngine(Checkpoint& checkpoint, const Ops& ops,
                                       std::span<const EngineRank> ranks,
                                       const AssemblyOptions& options, const LoadProgress& progress,
                                       Engine::OutputCallback on_output);

// Of a rank's memory what only weights and devices can say.
struct RankMemory {
  size_t weights = 0;                    // PartBytes
  size_t peers = 0;                      // EngineRank::peer_bytes
  std::optional<size_t> workspace;       // nothing: a loaded model measures it
  std::optional<int64_t> cached_layers;  // nothing: all
  int64_t available = 0;                 // MemoryNeeds::memory_bytes
  bool records = true;                   // Device::records(), of a GPU
};
// What an engine with these limits, all of them filled in, needs of a rank's memory, by sizes
// alone: there may be neither weights nor a device yet.
MemoryNeeds NeedsAhead(const ModelConfig& config, const Ops& ops, const Shard& shard,
                       const AssemblyOptions& options, const RankMemory& memory);

// What the plan counts beside the cache, in its order.
struct EngineBytes {
  size_t weights = 0, activations = 0;
  size_t pairs = 0;  // what experts that lie over ranks compute; 0: they do not
  size_t peers = 0;  // EngineRank::peer_bytes
  StepRunnerBytes runner;
  std::optional<size_t> workspace;  // of ops, which a model measures once it is loaded
  size_t requests = 0;              // that a server holds
  size_t grammars = 0;              // the same, with what compiles them
  int64_t recorded_steps = 0;       // that are to be recorded
};
std::vector<MemoryNeed> EngineNeeds(const EngineBytes& bytes, bool gpu);

// Says in the plan what was recorded. A sentence if that took more than the plan keeps for it, in
// which case the plan has the larger number; otherwise empty.
std::string TakeRecorded(const RecordedSteps& recorded, MemoryPlan& plan);

}  // namespace fathom
