#include "assemble.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/machine_memory.h"
#include "base/mmap.h"
#include "base/printable.h"
#include "checkpoint/folder.h"
#include "checkpoint/presets.h"
#include "engine/memory_plan.h"
#include "engine/model_executor.h"
#include "model/activations.h"
#include "ops/weight_width.h"
#include "tensor/out_of_memory.h"

namespace fathom {
namespace {

// A bar on a terminal, redrawn ten times a second at most; elsewhere a log line every ten seconds,
// and one at the end.
class ProgressLine {
 public:
  void Show(uint64_t done, uint64_t total) {
    const auto now = std::chrono::steady_clock::now();
    const bool finished = done == total;
    if (finished_ || (!finished && now < next_)) return;
    finished_ = finished;
    next_ = now + interval_;
    const int percent = total == 0 ? 100 : static_cast<int>(done * 100 / total);
    const double gib = static_cast<double>(total) / (1 << 30);
    if (!terminal_) {
      LOG_INFO("loading weights: {} % of {:.2f} GiB", percent, gib);
      return;
    }
    const auto filled = static_cast<size_t>(percent * kWidth / 100);
    fmt::print(stderr, "\rloading weights [{:#<{}}{:.<{}}] {:3} % of {:.2f} GiB{}", "", filled, "",
               kWidth - filled, percent, gib, finished ? "\n" : "");
    std::fflush(stderr);
  }

 private:
  static constexpr size_t kWidth = 40;
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const std::chrono::milliseconds interval_{terminal_ ? 100 : 10'000};
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + interval_;
  bool finished_ = false;
};

constexpr uint64_t kDummySeed = 0;
constexpr size_t kMaxConfigBytes = 1 << 20;

// The configuration of a model that is to be measured without its weights.
Result<ModelConfig> DummyConfig(const EngineSettings& s) {
  ModelConfig config;
  if (!s.config_preset.empty()) {
    config = TRY(PresetConfig(s.config_preset));
  } else if (!s.model.empty()) {
    const std::string folder = TRY(ResolveFolder(s.model));
    config = TRY(ParseModelConfig(TRY(ReadFile(folder + "/config.json", kMaxConfigBytes))));
  } else {
    return InvalidArgument(
        "--load-format dummy needs --config-preset ({}), or a folder that has a "
        "config.json",
        kPresetNames);
  }
  if (s.num_layers > config.num_layers) {
    return InvalidArgument("--num-layers {}: the model has {}", s.num_layers, config.num_layers);
  }
  if (s.num_layers > 0) {
    config.num_layers = s.num_layers;
    config.num_mtp_layers = 0;
  }
  if (s.dtype != "auto") config.fp8 = s.dtype == "fp8";
  return config;
}

Result<Checkpoint> OpenCheckpoint(const EngineSettings& s) {
  if (s.load_format == "dummy") return Checkpoint::Dummy(TRY(DummyConfig(s)), kDummySeed);
  if (!s.config_preset.empty() || s.num_layers > 0 || s.dtype != "auto") {
    return InvalidArgument(
        "--config-preset, --num-layers and --dtype describe random weights: add --load-format "
        "dummy, or leave them out");
  }
  if (s.model.empty()) {
    return InvalidArgument(
        "no model: name its folder, or measure random weights with --load-format dummy "
        "--config-preset v2-lite");
  }
  return Checkpoint::Open(s.model);
}

Result<std::unique_ptr<Tokenizer>> LoadTokenizer(const EngineSettings& s,
                                                 const ModelConfig& config) {
  if (!s.needs_tokenizer) return std::unique_ptr<Tokenizer>();
  const Result<std::string> folder = ResolveFolder(s.model);
  auto tokenizer = folder.ok() ? Tokenizer::Load(*folder) : folder.status();
  if (!tokenizer.ok() && s.load_format == "dummy") {
    return tokenizer.status().WithContext(
        "random weights have no tokenizer of their own: name the folder of a model that has one");
  }
  if (tokenizer.ok() && (*tokenizer)->vocab_size() > config.vocab_size) {
    return InvalidArgument("{}: the tokenizer has {} tokens, the model {}", s.model,
                           (*tokenizer)->vocab_size(), config.vocab_size);
  }
  return tokenizer;
}

Result<std::optional<ChatTemplate>> ParseChatTemplate(const EngineSettings& s,
                                                      const Tokenizer* tokenizer) {
  if (tokenizer == nullptr || s.chat_template == ChatTemplateUse::kNone) {
    return std::optional<ChatTemplate>();
  }
  const std::string& source = tokenizer->chat_template();
  if (source.empty()) {
    if (s.chat_template == ChatTemplateUse::kIfThere) return std::optional<ChatTemplate>();
    return InvalidArgument("{} has no chat template: use --raw", s.model);
  }
  Result<ChatTemplate> parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status().WithContext(s.model + ": the chat template");
  return std::optional(*std::move(parsed));
}

// What the weights will take, nearly: quantised ones are not as large as they are stored.
int64_t PlannedWeightBytes(const EngineSettings& s, const Checkpoint& checkpoint) {
  const auto stored = static_cast<int64_t>(checkpoint.total_bytes());
  if (s.quantization == "none") return stored;
  const ModelConfig& config = checkpoint.config();
  const double numbers = static_cast<double>(stored) / (config.fp8 ? 1 : 2);
  const auto format = s.quantization == "int8" ? WeightFormat::kInt8 : WeightFormat::kInt4;
  const int64_t embedding = 2 * int64_t{config.vocab_size} * config.hidden_size;
  return static_cast<int64_t>(numbers * WidthOf(format)) + embedding;
}

// Before anything large is allocated or read.
Result<MemoryPlan> Plan(const EngineSettings& s, const Checkpoint& checkpoint, DType kv_cache,
                        const Backend& backend) {
  const ModelConfig& config = checkpoint.config();
  if (s.max_model_len > config.max_position_embeddings) {
    return InvalidArgument("--max-model-len {}: the model was made for {} positions",
                           s.max_model_len, config.max_position_embeddings);
  }
  return PlanMemory(
      {.weight_bytes = static_cast<size_t>(PlannedWeightBytes(s, checkpoint)),
       .activation_bytes = Activations::Bytes(config, *backend.ops, s.max_num_batched_tokens),
       .state_bytes = StateBytes(config.vocab_size, s.max_num_seqs),
       .page_bytes = MakeKvFormat(config, kv_cache).page_bytes() * config.total_layers(),
       .max_model_len = s.max_model_len > 0 ? s.max_model_len : config.max_position_embeddings,
       .max_num_seqs = s.max_num_seqs,
       .kv_cache_bytes = s.kv_cache_bytes,
       .memory_bytes = backend.device->FreeBytes(),
       .memory_is_ours = backend.ops->name.starts_with("cuda")});
}

}  // namespace

void EngineSettings::FillDefaults() {
  const bool gpu = device == "cuda";
  if (max_num_seqs == 0) {
    max_num_seqs = gpu ? 256 : 32;
    if (max_num_batched_tokens > 0) max_num_seqs = std::min(max_num_seqs, max_num_batched_tokens);
  }
  if (max_num_batched_tokens == 0) {
    max_num_batched_tokens = std::max({gpu ? 8192 : 1024, prefill_chunk, max_num_seqs});
  }
  if (prefill_chunk == 0) prefill_chunk = std::min(gpu ? 2048 : 512, max_num_batched_tokens);
}

Result<LoadedEngine> AssembleEngine(EngineSettings settings, Engine::OutputCallback on_output) {
  settings.FillDefaults();
  LoadedEngine loaded;
  loaded.backend = TRY(MakeBackend(TRY(OpsFor(settings.device, settings)), settings.threads,
                                   settings.gpu, settings.quantization));
  const Checkpoint checkpoint = TRY(OpenCheckpoint(settings));
  for (const std::string& warning : checkpoint.warnings()) LOG_WARNING("{}", warning);
  loaded.config = checkpoint.config();
  loaded.generation = checkpoint.generation();
  loaded.eos = loaded.generation.eos.empty() ? loaded.config.eos : loaded.generation.eos;
  loaded.model_name =
      settings.config_preset.empty() ? ModelName(settings.model) : settings.config_preset;
  loaded.tokenizer = TRY(LoadTokenizer(settings, loaded.config));
  loaded.chat_template = TRY(ParseChatTemplate(settings, loaded.tokenizer.get()));

  const std::optional<DType> kv_cache = TRY(ParseKvCacheDType(settings.kv_cache_dtype));
  MemoryPlan plan = TRY(
      Plan(settings, checkpoint, kv_cache.value_or(loaded.backend.ops->kv_cache), loaded.backend));
  SetMemoryPlan(plan.ToString());
  LOG_INFO("memory plan: {}", plan.ToString());
  if (const std::string unused = plan.UnusedCache(); !unused.empty()) LOG_WARNING("{}", unused);
  LOG_INFO("at most {} and {} a step, prompts in chunks of {}",
           Counted(settings.max_num_seqs, "request"),
           Counted(settings.max_num_batched_tokens, "token"), settings.prefill_chunk);

  EngineOptions options{.scheduler = {.max_num_seqs = settings.max_num_seqs,
                                      .max_num_batched_tokens = settings.max_num_batched_tokens,
                                      .prefill_chunk = settings.prefill_chunk,
                                      .num_pages = static_cast<int32_t>(plan.num_pages),
                                      .max_model_len = plan.needs.max_model_len},
                        .max_queue = settings.max_queue,
                        .vocab_size = loaded.config.vocab_size};
  TRY(Validate(options.scheduler));

  ProgressLine progress;
  loaded.model =
      TRY(Model::Load(checkpoint, *loaded.backend.ops, *loaded.backend.device,
                      {.max_tokens = settings.max_num_batched_tokens,
                       .max_rows = settings.max_num_seqs,
                       .max_logit_rows = settings.max_num_seqs,
                       .max_model_len = plan.needs.max_model_len,
                       .kv_cache = kv_cache},
                      [&](uint64_t done, uint64_t total) { progress.Show(done, total); }));
  plan.needs.weight_bytes = loaded.model->weight_bytes();
  plan.needs.activation_bytes = loaded.model->activation_bytes();
  plan.needs.workspace_bytes = loaded.model->workspace_bytes();
  plan = TRY(PlanMemory(plan.needs));
  SetMemoryPlan(plan.ToString());
  LOG_INFO("memory: {}", plan.ToString());
  options.scheduler.num_pages = static_cast<int32_t>(plan.num_pages);

  loaded.clock = std::make_unique<SteadyClock>();
  loaded.engine =
      std::make_unique<Engine>(options,
                               std::make_unique<ModelExecutor>(
                                   *loaded.model, *loaded.backend.device,
                                   ModelExecutorOptions{.num_pages = plan.num_pages,
                                                        .slots = settings.max_num_seqs,
                                                        .max_in_flight = options.scheduler.depth}),
                               loaded.clock.get(), std::move(on_output));
  return loaded;
}

}  // namespace fathom
