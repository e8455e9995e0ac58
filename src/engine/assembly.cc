#include "engine/assembly.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/printable.h"
#include "engine/load_models.h"
#include "engine/model_executor.h"
#include "engine/rank_executors.h"
#include "engine/recorded_sizes.h"
#include "grammar/grammar_compiler.h"
#include "model/activations.h"
#include "quant/weight_format.h"
#include "tensor/out_of_memory.h"

namespace fathom {
namespace {

// On an H200 0.6 GiB were measured beside the plan, the context included, for 27 recorded layers.
constexpr size_t kGpuReserveBytes = size_t{1} << 30;
constexpr char kRecordedSteps[] = "kernels and recorded steps";

bool IsGpu(const Ops& ops) {
  return ops.name.starts_with("cuda");
}

// What a rank's weights will take, nearly: quantised ones are not as large as they are stored.
size_t PlannedWeightBytes(const ModelConfig& config, size_t stored,
                          std::optional<WeightFormat> quantized) {
  if (!quantized) return stored;
  const double numbers = static_cast<double>(stored) / (config.fp8 ? 1 : 2);
  const int64_t embedding = 2 * int64_t{config.vocab_size} * config.hidden_size;
  return static_cast<size_t>(numbers * quantized->bytes_per_weight()) +
         static_cast<size_t>(embedding);
}

// A step's logit vectors exist so many at a time.
constexpr int64_t kMaxPassVectors = 256;

std::optional<NgramLookup> LookupOf(const Speculation& speculation) {
  if (speculation.method != Speculation::Method::kNgram) return std::nullopt;
  return NgramLookup{.least = speculation.lookup_min, .most = speculation.lookup_max};
}

ModelOptions ModelOptionsOf(const ModelConfig& config, const AssemblyOptions& options) {
  const EngineLimits& limits = options.limits;
  const int64_t vectors = int64_t{limits.max_num_seqs} * (1 + limits.speculation.num_tokens);
  return {.max_tokens = limits.max_num_batched_tokens,
          .max_rows = limits.max_num_seqs,
          .max_drafts = limits.speculation.num_tokens,
          .ngram = LookupOf(limits.speculation),
          .mtp = limits.speculation.method == Speculation::Method::kMtp,
          .synthetic_acceptance = options.synthetic_acceptance,
          .max_logit_vectors = std::min(vectors, kMaxPassVectors),
          .max_model_len = limits.max_model_len,
          .absorbed_limit = AbsorbedLimit(config),
          .batch_invariant = limits.batch_invariant,
          .kv_cache = options.kv_cache,
          .synthetic_routing = options.synthetic_routing};
}

// Pages stay within this engine: what stands here is for those that may come to leave it.
PrefixScope PrefixScopeOf(const Checkpoint& checkpoint, const Ops& ops,
                          const AssemblyOptions& options) {
  const std::string quantized = options.quantized ? Describe(*options.quantized) : "";
  return {.model = fmt::format("{} {} {}", checkpoint.folder(), ops.name, quantized),
          .kv_format = std::string(Name(options.kv_cache.value_or(ops.kv_cache)))};
}

// But for pages, which the memory plan says.
EngineOptions EngineOptionsOf(const ModelConfig& config, const EngineLimits& limits,
                              const ModelOptions& model, const ParallelLayout& layout,
                              PrefixScope scope) {
  return {.scheduler = {.groups = layout.data,
                        .max_num_seqs = limits.max_num_seqs,
                        .max_num_batched_tokens = limits.max_num_batched_tokens,
                        .prefill_chunk = limits.prefill_chunk,
                        .max_model_len = limits.max_model_len,
                        .absorbed_limit = model.absorbed_limit,
                        .stages = layout.pipeline,
                        .depth = layout.pipeline + 1,
                        .max_drafts = limits.speculation.num_tokens,
                        .lookahead = limits.speculation.lookahead(),
                        .prefix_caching = limits.prefix_caching,
                        .reuse_decoded = limits.reuse_decoded,
                        .prefix_scope = std::move(scope)},
          .max_queue = limits.max_queue,
          .queue_timeout_s = limits.queue_timeout_s,
          .adapts_drafts = limits.speculation.adapts,
          .vocab_size = config.vocab_size};
}

// What all of the ranks can have each, with what their communicators have: those of CPUs share the
// machine's memory.
int64_t FreeBytesEach(std::span<const EngineRank> ranks, const Ops& ops) {
  int64_t least = INT64_MAX;
  for (const EngineRank& rank : ranks) {
    least = std::min(least, rank.device->FreeBytes() + static_cast<int64_t>(rank.peer_bytes));
  }
  return IsGpu(ops) ? least : least / static_cast<int64_t>(ranks.size());
}

// Of each stage of this host the first rank, of which no other here has a larger part.
std::vector<size_t> FirstOfStages(std::span<const EngineRank> ranks) {
  std::vector<size_t> first;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank == 0 || ranks[rank].shard.stage != ranks[rank - 1].shard.stage) first.push_back(rank);
  }
  return first;
}

// Of stages the one with room for the fewest pages, and of such the one that takes most.
const MemoryPlan& Tightest(const std::vector<MemoryPlan>& stages) {
  return *std::min_element(stages.begin(), stages.end(), [](const auto& a, const auto& b) {
    return std::pair(a.num_pages, -a.total_bytes()) < std::pair(b.num_pages, -b.total_bytes());
  });
}

// What a server takes of the machine's memory, with what compiles grammars, counts in equal parts
// for the ranks here, as what they can have does (FreeBytesEach). A model's vocabulary has a few
// tokens that no tokenizer has.
void ShareServerMemory(size_t ranks, const ModelConfig& config, EngineLimits& limits) {
  if (limits.grammar_memory_bytes > 0) {
    limits.grammar_memory_bytes += AllCompilersBytes(static_cast<size_t>(config.vocab_size));
  }
  limits.grammar_memory_bytes /= ranks;
  limits.request_memory_bytes /= ranks;
}

Status CheckGrammarMemory(const EngineLimits& limits, const ModelConfig& config) {
  const size_t least = LeastGrammarBytes(static_cast<size_t>(config.vocab_size));
  const size_t bytes = limits.grammar_memory_bytes;
  if (bytes == 0 || bytes >= least) return {};
  return InvalidArgument(
      "--max-grammar-memory-bytes {}: several clients' grammars for this model's {} tokens may "
      "take "
      "more: say {} at least",
      bytes, config.vocab_size, least);
}

// Before anything large is allocated or read; of a stage's first rank.
Result<MemoryPlan> PlanAhead(const Checkpoint& checkpoint, const Ops& ops,
                             std::span<const EngineRank> ranks, const EngineRank& rank,
                             const AssemblyOptions& options) {
  const Shard& shard = rank.shard;
  const ModelConfig& config = checkpoint.config();
  const TensorSizes stored = SizesIn(checkpoint);
  const size_t bytes = PartBytes(config, ops, shard, stored);
  return PlanMemory(NeedsAhead(config, ops, shard, options,
                               {.weights = PlannedWeightBytes(config, bytes, options.quantized),
                                .peers = rank.peer_bytes,
                                .cached_layers = CachedLayers(config, shard, stored),
                                .available = FreeBytesEach(ranks, ops),
                                .records = rank.device->records()}));
}

// With what its model measured; the memory that can be had is that from before it was
// loaded.
Result<MemoryPlan> PlanAgain(MemoryNeeds needs, const Model& model, size_t peer_bytes,
                             const EngineLimits& limits, const Ops& ops) {
  const EngineBytes bytes = {
      .weights = model.weight_bytes(),
      .activations = model.activation_bytes(),
      .pairs = model.exchange_bytes(),
      .peers = peer_bytes,
      .runner = StepRunner::Bytes(model.config(), model.options(), limits.max_num_seqs, ops),
      .workspace = model.workspace_bytes(),
      .requests = limits.request_memory_bytes,
      .grammars = limits.grammar_memory_bytes,
      .recorded_steps = needs.recorded_steps};
  needs.items = EngineNeeds(bytes, IsGpu(ops));
  return PlanMemory(needs);
}

// Of each stage.
Result<std::vector<MemoryPlan>> PlanStages(const Checkpoint& checkpoint, const Ops& ops,
                                           std::span<const EngineRank> ranks,
                                           const AssemblyOptions& options) {
  std::vector<MemoryPlan> plans;
  for (const size_t rank : FirstOfStages(ranks)) {
    plans.push_back(TRY(PlanAhead(checkpoint, ops, ranks, ranks[rank], options)));
  }
  return plans;
}

Status PlanStagesAgain(const std::vector<std::unique_ptr<Model>>& models,
                       std::span<const EngineRank> ranks, const EngineLimits& limits,
                       const Ops& ops, std::vector<MemoryPlan>& plans) {
  const std::vector<size_t> first = FirstOfStages(ranks);
  for (size_t stage = 0; stage < plans.size(); ++stage) {
    const size_t rank = first[stage];
    plans[stage] =
        TRY(PlanAgain(plans[stage].needs, *models[rank], ranks[rank].peer_bytes, limits, ops));
  }
  return {};
}

// The model's draft layer is read and has a part of the cache only if it proposes.
Status TakeDraftLayer(Checkpoint& checkpoint, const Speculation& speculation) {
  const int layers = checkpoint.config().num_mtp_layers;
  if (speculation.method != Speculation::Method::kMtp) {
    checkpoint.LeaveOutMtp();
  } else if (layers != 1) {
    return InvalidArgument(
        "--speculative-config: method \"mtp\" needs a model with one layer for it "
        "(num_nextn_predict_layers), and this one has {}: take \"ngram\", or no drafts",
        layers);
  }
  return {};
}

// On hosts but the first what follows its steps.
void AddEngine(const EngineOptions& engine, std::vector<std::unique_ptr<Executor>> executors,
               std::span<const EngineRank> ranks, Hosts* hosts, Engine::OutputCallback on_output,
               AssembledEngine& assembled) {
  std::vector<std::shared_ptr<RemoteResults>> remote;
  if (hosts != nullptr && !hosts->first()) {
    assembled.follower = std::make_unique<StepFollower>(
        *hosts, ByGroup(std::move(executors), ranks), engine.scheduler.stages,
        SlotMaskRoom{.vocab = engine.vocab_size, .max_drafts = engine.scheduler.max_drafts});
  } else {
    assembled.engine =
        std::make_unique<Engine>(engine, AsOneExecutor(std::move(executors), ranks, hosts, remote),
                                 assembled.clock.get(), std::move(on_output));
  }
  if (hosts != nullptr) {
    std::vector<Device*> devices;
    for (const EngineRank& rank : ranks) devices.push_back(rank.device);
    assembled.watch = std::make_unique<HostWatch>(*hosts, std::move(devices), std::move(remote));
    if (assembled.engine) {
      assembled.watched = std::make_unique<WatchedEngine>(*assembled.watch, *assembled.engine);
    }
  }
}

}  // namespace

MemoryNeeds NeedsAhead(const ModelConfig& config, const Ops& ops, const Shard& shard,
                       const AssemblyOptions& options, const RankMemory& memory) {
  const EngineLimits& limits = options.limits;
  const KvFormat kv = MakeKvFormat(config, options.kv_cache.value_or(ops.kv_cache));
  ModelOptions model = ModelOptionsOf(config, options);
  model.shard = shard;
  const bool records = IsGpu(ops) && memory.records;
  const auto recorded = static_cast<int64_t>(records ? RecordedSizes(model).size() : 0);
  const EngineBytes bytes = {
      .weights = memory.weights,
      .activations = Model::ActivationBytes(config, ops, model),
      .pairs = PairExchange::Bytes(config, shard, ops, limits.max_num_batched_tokens),
      .peers = memory.peers,
      .runner = StepRunner::Bytes(config, model, limits.max_num_seqs, ops),
      .workspace = memory.workspace,
      .requests = limits.request_memory_bytes,
      .grammars = limits.grammar_memory_bytes,
      .recorded_steps = recorded};
  return {.items = EngineNeeds(bytes, IsGpu(ops)),
          .page_bytes = kv.page_bytes() * memory.cached_layers.value_or(config.total_layers()),
          .max_model_len = limits.max_model_len,
          .max_num_seqs = limits.max_num_seqs,
          .kv_cache_bytes = limits.kv_cache_bytes,
          .prefix_caching = limits.prefix_caching,
          .memory_bytes = memory.available,
          .memory_is_ours = IsGpu(ops),
          .recorded_steps = recorded};
}

void EngineLimits::FillDefaults(bool gpu) {
  if (max_num_seqs == 0) {
    max_num_seqs = gpu ? 256 : 32;
    if (max_num_batched_tokens > 0) max_num_seqs = std::min(max_num_seqs, max_num_batched_tokens);
  }
  if (max_num_batched_tokens == 0) {
    max_num_batched_tokens = std::max({gpu ? 8192 : 1024, prefill_chunk, max_num_seqs});
  }
  if (prefill_chunk == 0) prefill_chunk = std::min(gpu ? 2048 : 512, max_num_batched_tokens);
}

std::vector<MemoryNeed> EngineNeeds(const EngineBytes& bytes, bool gpu) {
  std::vector<MemoryNeed> needs = {
      {.name = "weights", .bytes = bytes.weights},
      {.name = "activations", .bytes = bytes.activations, .lowered_by = "--max-num-batched-tokens"},
      {.name = "work space", .bytes = bytes.workspace, .lowered_by = "--max-num-batched-tokens"},
      {.name = "request state", .bytes = bytes.runner.slots, .lowered_by = "--max-num-seqs"},
      {.name = "logits", .bytes = bytes.runner.logits, .lowered_by = "--max-num-seqs"}};
  if (!gpu && bytes.requests > 0) {
    needs.push_back({.name = "requests' text",
                     .bytes = bytes.requests,
                     .lowered_by = "--max-request-memory-bytes"});
  }
  if (!gpu && bytes.grammars > 0) {
    needs.push_back(
        {.name = "grammars", .bytes = bytes.grammars, .lowered_by = "--max-grammar-memory-bytes"});
  }
  if (bytes.pairs > 0) {
    needs.push_back({.name = "exchange of experts' tokens",
                     .bytes = bytes.pairs,
                     .lowered_by = "--max-num-batched-tokens"});
  }
  if (bytes.peers > 0) needs.push_back({.name = "memory that ranks share", .bytes = bytes.peers});
  if (gpu) {
    needs.push_back({.name = kRecordedSteps,
                     .bytes = kGpuReserveBytes,
                     .remark = bytes.recorded_steps > 0
                                   ? Counted(bytes.recorded_steps, "step") + " to record"
                                   : ""});
  }
  return needs;
}

std::string TakeRecorded(const RecordedSteps& recorded, MemoryPlan& plan) {
  const auto gib = [](size_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  MemoryNeed& need =
      *std::find_if(plan.needs.items.begin(), plan.needs.items.end(),
                    [](const MemoryNeed& item) { return item.name == kRecordedSteps; });
  const auto bytes = static_cast<size_t>(recorded.bytes);
  need.remark = fmt::format("{} recorded in {:.1f} s, which took {:.2f}",
                            Counted(recorded.steps, "step"), recorded.seconds, gib(bytes));
  if (!recorded.times.empty()) {
    need.remark += fmt::format(", and timed in {:.1f} s", recorded.timing_seconds);
  }
  const size_t kept = need.bytes.value();
  if (bytes <= kept) return "";
  need.bytes = bytes;
  return fmt::format(
      "{} and their kernels took {:.2f} GiB, and the memory plan keeps {:.2f} for them: what is "
      "left for others on this GPU is less than planned; --max-num-seqs lowers their number",
      Counted(recorded.steps, "recorded step"), gib(bytes), gib(kept));
}

Result<AssembledEngine> AssembleEngine(Checkpoint& checkpoint, const Ops& ops,
                                       std::span<const EngineRank> ranks,
                                       const AssemblyOptions& options, const LoadProgress& progress,
                                       Engine::OutputCallback on_output) {
  TRY(TakeDraftLayer(checkpoint, options.limits.speculation));
  const ModelConfig& config = checkpoint.config();
  TRY(CheckLayout(config, ranks[0].shard.layout));
  AssemblyOptions filled = options;
  EngineLimits& limits = filled.limits;
  if (limits.max_model_len > config.max_position_embeddings) {
    return InvalidArgument("--max-model-len {}: the model was made for {} positions",
                           limits.max_model_len, config.max_position_embeddings);
  }
  if (limits.max_model_len == 0) limits.max_model_len = config.max_position_embeddings;
  TRY(CheckGrammarMemory(limits, config));
  ShareServerMemory(ranks.size(), config, limits);
  std::vector<MemoryPlan> plans = TRY(PlanStages(checkpoint, ops, ranks, filled));
  MemoryPlan plan = Tightest(plans);
  SetMemoryPlan(plan.ToString());
  LOG_INFO("memory plan: {}", plan.ToString());
  if (const std::string unused = plan.UnusedCache(); !unused.empty()) LOG_WARNING("{}", unused);
  const int groups = ranks[0].shard.layout.data;
  LOG_INFO("at most {} and {} a step{}, prompts in chunks of {}",
           Counted(limits.max_num_seqs, "request"), Counted(limits.max_num_batched_tokens, "token"),
           groups > 1 ? fmt::format(" in each of {} groups", groups) : "", limits.prefill_chunk);

  const ModelOptions model_options = ModelOptionsOf(config, filled);
  EngineOptions engine = EngineOptionsOf(config, limits, model_options, ranks[0].shard.layout,
                                         PrefixScopeOf(checkpoint, ops, options));
  engine.scheduler.num_pages = static_cast<int32_t>(plan.num_pages);
  TRY(Validate(engine.scheduler));

  AssembledEngine assembled;
  assembled.models = TRY(LoadModels(checkpoint, ops, ranks, model_options, progress));
  TRY(PlanStagesAgain(assembled.models, ranks, limits, ops, plans));
  plan = Tightest(plans);
  SetMemoryPlan(plan.ToString());
  LOG_INFO("memory: {}", plan.ToString());
  if (options.hosts != nullptr) plan.num_pages = TRY(options.hosts->Least(plan.num_pages));
  engine.scheduler.num_pages = static_cast<int32_t>(plan.num_pages);

  assembled.clock = std::make_unique<SteadyClock>();
  RankExecutors executors = TRY(MakeRankExecutors(assembled.models, ranks,
                                                  {.num_pages = plan.num_pages,
                                                   .slots = limits.max_num_seqs,
                                                   .max_in_flight = engine.scheduler.depth,
                                                   .time_steps = engine.adapts_drafts,
                                                   .step_timeout_s = options.step_timeout_s},
                                                  options.hosts));
  const RecordedSteps& recorded = assembled.recorded = std::move(executors.recorded);
  if (recorded.steps > 0) {
    const std::string excess = TakeRecorded(recorded, plan);
    SetMemoryPlan(plan.ToString());
    LOG_INFO("memory: {}", plan.ToString());
    if (!excess.empty()) LOG_WARNING("{}", excess);
    engine.step_times = recorded.times;
  }
  AddEngine(engine, std::move(executors.ranks), ranks, options.hosts, std::move(on_output),
            assembled);
  return assembled;
}

}  // namespace fathom
