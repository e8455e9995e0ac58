#include "load_engine.h"

#include <unistd.h>

#include <chrono>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

#include "base/log.h"
#include "base/mmap.h"
#include "checkpoint/folder.h"
#include "checkpoint/presets.h"
#include "host_facts.h"
#include "speculation_flag.h"

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
constexpr size_t kMaxSharesBytes = 4 << 20;
constexpr std::string_view kRoutings = "--synthetic-routing: uniform, zipf or a file";

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

// Numbers, in a line for each MoE layer, or in one line for all.
Result<SyntheticRouting> ParseShares(const std::string& text) {
  SyntheticRouting routing;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream numbers(line);
    const std::vector<double> shares{std::istream_iterator<double>(numbers), {}};
    if (!numbers.eof()) {
      return InvalidArgument("line {} has something else than numbers", routing.shares.size() + 1);
    }
    routing.shares.push_back(shares);
  }
  return routing;
}

// What SyntheticRouting::Check refuses too, in words for who wrote the file, line by line.
Status CheckLines(const SyntheticRouting& routing, const ModelConfig& config) {
  int layers = 0;
  for (int i = 0; i < config.num_layers; ++i) layers += config.IsMoeLayer(i) ? 1 : 0;
  if (layers == 0) {
    return InvalidArgument("no layer of the model has experts: there is nothing to draw");
  }
  const size_t lines = routing.shares.size();
  if (lines != 1 && lines != static_cast<size_t>(layers)) {
    return InvalidArgument(
        "{} lines of shares: {} layers of the model have experts; write a line for each of them, "
        "or one line for all",
        lines, layers);
  }
  for (size_t i = 0; i < lines; ++i) {
    if (routing.shares[i].size() != static_cast<size_t>(config.n_routed_experts)) {
      return InvalidArgument("line {} has {} shares: a layer of the model has {} experts", i + 1,
                             routing.shares[i].size(), config.n_routed_experts);
    }
  }
  return {};
}

Result<std::optional<SyntheticRouting>> MakeSyntheticRouting(const std::string& name,
                                                             const ModelConfig& config) {
  if (name.empty()) return std::optional<SyntheticRouting>();
  const std::string flag = "--synthetic-routing " + name;
  SyntheticRouting routing;
  if (name == "uniform") {
    routing = SyntheticRouting::Uniform(config);
  } else if (name == "zipf") {
    routing = SyntheticRouting::Zipf(config);
  } else {
    const Result<std::string> text = ReadFile(name, kMaxSharesBytes);
    if (!text.ok()) return text.status().WithContext(kRoutings);
    Result<SyntheticRouting> parsed = ParseShares(*text);
    if (!parsed.ok()) return parsed.status().WithContext(flag);
    routing = *std::move(parsed);
  }
  if (const Status lines = CheckLines(routing, config); !lines.ok()) return lines.WithContext(flag);
  if (const Status numbers = routing.Check(config); !numbers.ok()) return numbers.WithContext(name);
  return std::optional(std::move(routing));
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

// The template's text, and what to call it; "" if there is none.
Result<std::pair<std::string, std::string>> ChatTemplateText(const EngineSettings& s,
                                                             const Tokenizer& tokenizer) {
  if (s.chat_template_file.empty()) {
    return std::pair(tokenizer.chat_template(), s.model + ": the chat template");
  }
  Result<std::string> text = ReadFile(s.chat_template_file, kMaxTemplateBytes);
  if (!text.ok()) return text.status().WithContext("--chat-template");
  return std::pair(*std::move(text), "--chat-template " + s.chat_template_file);
}

Result<std::optional<ChatTemplate>> ParseChatTemplate(const EngineSettings& s,
                                                      const Tokenizer* tokenizer) {
  if (tokenizer == nullptr || s.chat_template == ChatTemplateUse::kNone) {
    return std::optional<ChatTemplate>();
  }
  const auto [source, name] = TRY(ChatTemplateText(s, *tokenizer));
  if (source.empty()) {
    if (s.chat_template == ChatTemplateUse::kIfThere) return std::optional<ChatTemplate>();
    return InvalidArgument("{} has no chat template: use --raw", s.model);
  }
  Result<ChatTemplate> parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status().WithContext(name);
  return std::optional(*std::move(parsed));
}

Result<Speculation> SpeculationOf(const EngineSettings& s, const ModelConfig& config) {
  if (s.no_speculation) return Speculation();
  if (s.speculative_config.empty()) return Speculation::Default(config.num_mtp_layers);
  return ParseSpeculation(s.speculative_config);
}

// A file by what is in it: hosts may have it under other names.
Result<std::string> RoutingFact(const std::string& name) {
  if (name.empty()) return std::string("none");
  if (name == "uniform" || name == "zipf") return name;
  const Result<std::string> text = ReadFile(name, kMaxSharesBytes);
  if (!text.ok()) return text.status().WithContext(kRoutings);
  return "a file with hash " + HashOf(*text);
}

std::string SpeculationFact(const EngineSettings& s) {
  if (s.no_speculation) return "none (--no-speculation)";
  return s.speculative_config.empty() ? "the default" : s.speculative_config;
}

// Flags of the engine that all hosts must have alike.
Result<HostFacts> FlagFacts(const EngineSettings& s) {
  return HostFacts{{"--max-model-len", std::to_string(s.max_model_len)},
                   {"--max-num-seqs", std::to_string(s.max_num_seqs)},
                   {"--max-num-batched-tokens", std::to_string(s.max_num_batched_tokens)},
                   {"--prefill-chunk", std::to_string(s.prefill_chunk)},
                   {"--kv-cache-memory-bytes", std::to_string(s.kv_cache_bytes)},
                   {"--batch-invariance", s.batch_invariant ? "on" : "off"},
                   {"--speculative-config", SpeculationFact(s)},
                   {"--synthetic-routing", TRY(RoutingFact(s.synthetic_routing))},
                   {"--synthetic-acceptance", fmt::format("{}", s.synthetic_acceptance)}};
}

}  // namespace

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
    if (s.speculative_config.empty()) config.num_mtp_layers = 0;
  }
  if (s.dtype != "auto") config.fp8 = s.dtype == "fp8";
  return config;
}

Result<LoadedEngine> LoadEngine(EngineSettings settings, Engine::OutputCallback on_output) {
  settings.FillDefaults();
  // As vLLM has it: they are read as they are.
  const bool stored_fp8 = settings.quantization == "fp8";
  if (stored_fp8) settings.quantization = "none";
  LoadedEngine loaded;
  const std::string ops = TRY(OpsFor(settings));
  Checkpoint checkpoint = TRY(OpenCheckpoint(settings));
  loaded.hosts =
      TRY(JoinHosts(settings.hosts, settings, ops, checkpoint, TRY(FlagFacts(settings))));
  loaded.backend = TRY(MakeBackend(ops, settings, loaded.hosts.get()));
  for (const std::string& warning : checkpoint.warnings()) LOG_WARNING("{}", warning);
  loaded.config = checkpoint.config();
  settings.speculation = TRY(SpeculationOf(settings, loaded.config));
  if (stored_fp8 && !loaded.config.fp8) {
    return InvalidArgument(
        "--quantization fp8: {} is not stored in FP8, and fathom makes int8 or int4 weights",
        settings.model);
  }
  loaded.generation = checkpoint.generation();
  loaded.eos = loaded.generation.eos.empty() ? loaded.config.eos : loaded.generation.eos;
  loaded.model_name =
      settings.config_preset.empty() ? ModelName(settings.model) : settings.config_preset;
  loaded.tokenizer = TRY(LoadTokenizer(settings, loaded.config));
  loaded.chat_template = TRY(ParseChatTemplate(settings, loaded.tokenizer.get()));

  if (loaded.hosts != nullptr && ops.starts_with("cuda")) EndWithLostHost(*loaded.hosts);
  ProgressLine progress;
  AssembledEngine assembled = TRY(AssembleEngine(
      checkpoint, *loaded.backend.ops, loaded.backend.Ranks(),
      {.limits = settings,
       .kv_cache = TRY(ParseKvCacheDType(settings.kv_cache_dtype)),
       .quantized = TRY(ParseQuantization(settings.quantization)),
       .synthetic_routing = TRY(MakeSyntheticRouting(settings.synthetic_routing, loaded.config)),
       .synthetic_acceptance = settings.synthetic_acceptance,
       .step_timeout_s = settings.step_timeout_s,
       .hosts = loaded.hosts.get()},
      [&](uint64_t done, uint64_t total) { progress.Show(done, total); }, std::move(on_output)));
  loaded.models = std::move(assembled.models);
  loaded.clock = std::move(assembled.clock);
  loaded.watch = std::move(assembled.watch);
  loaded.engine = std::move(assembled.engine);
  loaded.watched = std::move(assembled.watched);
  loaded.follower = std::move(assembled.follower);
  loaded.recorded = std::move(assembled.recorded);
  return loaded;
}

}  // namespace fathom
