// fathom bench offline: the engine's speed, and how much of the machine it uses.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "cpu/cpu_stream.h"
#include "cpu/peak.h"
#include "engine_flags.h"
#include "offline_report.h"
#include "taken_flags.h"
#include "usage.h"

namespace fathom {
namespace {

// What is known of the whole model, where each host has some of its ranks.
struct WholeModel {
  WeightWidths widths;
  size_t weight_bytes = 0;  // of all ranks
};

// What `host` says; each says something, in the same order.
Result<int64_t> Said(Hosts* hosts, int host, int64_t mine) {
  if (hosts == nullptr) return mine;
  return hosts->Least(hosts->index() == host ? mine : INT64_MAX);
}

// Of the formats that the loaded model has: the first rank's has the embedding, the last one's the
// head.
Result<WholeModel> WholeOf(const LoadedEngine& loaded) {
  constexpr double kUnits = 1 << 20;  // of a byte: a weight's scales are some of it
  Hosts* const hosts = loaded.hosts.get();
  const int count = hosts == nullptr ? 1 : hosts->count();
  const ModelWeights &first = loaded.models.front()->weights(),
                     &last = loaded.models.back()->weights();
  const PackedWeight* const head = last.lm_head.weight.get();
  const double head_bytes = head == nullptr ? 0 : head->format.bytes_per_weight();
  const AttentionWeights& attention = first.layers.front().attention;
  WholeModel whole;
  whole.widths = {.linear = attention.o.weight->format.bytes_per_weight(),
                  .absorbed = attention.w_uk.weight->format.bytes_per_weight(),
                  .head = static_cast<double>(TRY(
                              Said(hosts, count - 1, static_cast<int64_t>(head_bytes * kUnits)))) /
                          kUnits,
                  .embedding = static_cast<double>(ByteSize(first.embedding.view.dtype()))};
  int64_t here = 0;
  for (const auto& rank : loaded.models) here += static_cast<int64_t>(rank->weight_bytes());
  for (int host = 0; host < count; ++host) {
    whole.weight_bytes += static_cast<size_t>(TRY(Said(hosts, host, here)));
  }
  return whole;
}

// What a run times.
struct Timed {
  bool prefill = true, decode = true;
};

Result<BatchResult> Measure(EngineMeter& meter, const LoadedEngine& loaded,
                            const WeightWidths& widths, const OfflineOptions& options,
                            const BatchShape& shape, Timed timed) {
  BatchResult result{.shape = shape};
  const int32_t repeats =
      timed.decode ? options.repeats : std::max(options.repeats, kLeastPrefills);
  for (int32_t i = 0; i < repeats; ++i) {
    if (timed.prefill) {
      result.prefill_runs.push_back(result.prompt_tokens() /
                                    TRY(meter.TimePrefill(*loaded.engine, shape)));
    }
    if (timed.decode) {
      const DecodeTimes times = TRY(meter.TimeDecode(*loaded.engine, shape));
      result.decode_runs.push_back(static_cast<double>(times.tokens) / times.seconds);
      result.tokens_per_step = static_cast<double>(times.tokens) / shape.output_len;
      result.step_seconds.insert(result.step_seconds.end(), times.step_seconds.begin(),
                                 times.step_seconds.end());
      result.context = times.context;
      result.experts = times.experts;
    }
    LOG_INFO("batch {}, {} prompt tokens, run {} of {}: prefill {:.1f}, decode {:.1f} tokens/s",
             shape.batch_size, shape.input_len, i + 1, repeats,
             timed.prefill ? result.prefill_runs.back() : 0,
             timed.decode ? result.decode_runs.back() : 0);
  }
  const Model& model = *loaded.models[0];
  const bool absorbed = shape.input_len <= model.options().absorbed_limit;
  const WorkShape step = {.rows = shape.rows_of_step(),
                          .context = result.context,
                          .absorbed = true,
                          .experts = result.experts};
  const KvFormat kv = model.kv_format();
  result.step = options.drafts() == 0
                    ? WorkOf(step, loaded.config, widths, kv)
                    : WorkWithDrafts(step, options.drafts(), loaded.config, widths, kv);
  result.prefill_work =
      WorkOf({.rows = shape.batch_size, .tokens = shape.input_len, .absorbed = absorbed},
             loaded.config, widths, kv);
  return result;
}

// Routed experts among those of the last MoE layer's tokens, of which each group has its share of
// `tokens`, or, where groups cut experts between them, all. THREAD: the engine's.
double CountExperts(const LoadedEngine& loaded, int32_t tokens) {
  const ParallelLayout& layout = loaded.backend.layout;
  const int32_t of_group =
      layout.cuts_over_groups() ? tokens : (tokens + layout.data - 1) / layout.data;
  std::vector<int32_t> chosen;
  // The last stage has the last of them.
  for (int rank = layout.world() - layout.stage_ranks(); rank < layout.world();
       rank += layout.tensor) {
    const auto at = static_cast<size_t>(rank);
    const TensorView ids = First(loaded.models[at]->expert_ids(), of_group);
    std::vector<int32_t> of_rank(static_cast<size_t>(ids.elements()));
    Device& device = *loaded.backend.devices[at];
    device.BindThread();
    device.Download(std::as_writable_bytes(std::span(of_rank)), ids);
    device.WaitFor(device.Mark());
    chosen.insert(chosen.end(), of_rank.begin(), of_rank.end());
  }
  std::sort(chosen.begin(), chosen.end());
  const auto routed =
      std::lower_bound(chosen.begin(), chosen.end(), loaded.config.n_routed_experts);
  return static_cast<double>(std::unique(chosen.begin(), routed) - chosen.begin());
}

// The most memory that the process had, from /proc/self/status; 0 where that does not say.
int64_t PeakResidentBytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) << 10;
  }
  return 0;
}

Result<Machine> MeasureMachine(const OfflineOptions& options) {
  LOG_INFO("measuring this machine");
  if (options.engine.ops.starts_with("cuda")) {
    const GpuMachine gpu = TRY(MeasureGpu(std::max(options.engine.gpu, 0), options.read_bytes));
    // All ranks together: what each of them has to read again is not in the work that floors are
    // of.
    const int ranks = options.engine.layout.world();
    return Machine{
        .name = ranks == 1 ? gpu.name : fmt::format("{} x {}", ranks, gpu.name),
        .driver = gpu.driver,
        .read_bandwidth = ranks * gpu.read_bandwidth,
        .peaks = {.fp32 = ranks * gpu.fp32_peak, .bf16 = ranks * gpu.bf16_peak, .int8 = {}},
        .fp8_peak = gpu.fp8_peak > 0 ? std::optional(ranks * gpu.fp8_peak) : std::nullopt};
  }
  ThreadPool pool(options.engine.threads);
  const int hosts = options.engine.hosts.count;  // taken to be as this one
  ArithmeticPeaks peaks = MeasureArithmeticPeaks(pool);
  peaks.fp32 *= hosts;
  for (std::optional<double>* peak : {&peaks.bf16, &peaks.int8}) {
    if (*peak) **peak *= hosts;
  }
  const std::string name = CpuModelName();
  return Machine{.name = hosts == 1 ? name : fmt::format("{} x {}", hosts, name),
                 .threads = hosts * pool.threads(),
                 .read_bandwidth = hosts * MeasureReadBandwidth(pool, options.read_bytes),
                 .peaks = peaks};
}

// Room for the largest batch, unless the flags say more.
EngineSettings SettingsFor(const OfflineOptions& options) {
  EngineSettings s = options.engine;
  s.needs_tokenizer = false;
  const auto most = [](const std::vector<int32_t>& values) {
    return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
  };
  const BatchShape largest{.batch_size = most(options.batch_sizes),
                           .input_len = most(options.input_lens),
                           .output_len = options.output_len,
                           .stages = s.layout.pipeline};
  s.max_num_seqs = (largest.batch_size + s.layout.data - 1) / s.layout.data;  // of each group
  s.FillDefaults();
  // What a step takes is measured: how many drafts stand is a text's matter.
  s.no_speculation = s.speculative_config.empty();
  if (s.max_model_len == 0) {
    s.max_model_len = static_cast<int32_t>(
        std::max<int64_t>(EngineMeter::MaxPositions(largest, s.prefill_chunk, options.drafts()),
                          most(options.prefill_lens) + 1));
  }
  return s;
}

// Nothing on hosts but the first.
Result<std::optional<MeasuredModel>> MeasureModel(const OfflineOptions& options) {
  if (options.engine.synthetic_acceptance >= 0 && options.engine.speculative_config.empty()) {
    return InvalidArgument(
        "--synthetic-acceptance: of which drafts? add --speculative-config "
        "'{{\"method\": \"mtp\", \"num_speculative_tokens\": 1}}'");
  }
  const EngineSettings settings = SettingsFor(options);
  EngineMeter meter(options.seed, options.temperature);
  LoadedEngine loaded = TRY(
      LoadEngine(settings, [&](std::vector<RequestOutput> outputs) { meter.Deliver(outputs); }));
  const WholeModel whole = TRY(WholeOf(loaded));
  if (loaded.follower) {
    TRY(loaded.watch->Wait());
    return std::optional<MeasuredModel>();
  }
  meter.SetVocabulary(loaded.config.vocab_size);
  meter.SetDrafts(options.drafts());
  // Drafts' tokens leave the draft layer's experts behind, unless all are drawn beforehand; other
  // hosts' ranks cannot be asked.
  const bool known =
      loaded.hosts == nullptr && (options.drafts() == 0 || !settings.synthetic_routing.empty());
  if (known && !loaded.models[0]->expert_ids().absent()) {
    meter.CountExperts([&](int32_t tokens) { return CountExperts(loaded, tokens); });
  }
  loaded.engine->Start();
  const BatchShape warm_up{.batch_size = settings.max_num_seqs * settings.layout.data,
                           .input_len = std::min(options.input_lens.front(), 64),
                           .output_len = std::min(options.output_len, 4),
                           .stages = settings.layout.pipeline};
  (void)TRY(meter.TimeDecode(*loaded.engine, warm_up));
  const Model& model = *loaded.models[0];
  MeasuredModel measured{
      .name = loaded.model_name,
      .layers = loaded.config.num_layers,
      .weights = Name(model.weights().layers.front().attention.o.weight->format.values),
      .kv_cache = Name(model.kv_format().At(KvPart::kLatent).dtype),
      .weight_bytes = whole.weight_bytes,
      .recorded = loaded.recorded};
  measured.linear_in_fp8 = model.weights().layers.front().attention.o.weight->quantize_activations;
  const bool apart = !options.prefill_lens.empty();
  for (const int32_t input_len : options.prefill_lens) {
    measured.prefills.push_back(
        TRY(Measure(meter, loaded, whole.widths, options, {.batch_size = 1, .input_len = input_len},
                    {.prefill = true, .decode = false})));
  }
  for (const int32_t input_len : options.input_lens) {
    for (const int32_t batch_size : options.batch_sizes) {
      const BatchShape shape{.batch_size = batch_size,
                             .input_len = input_len,
                             .output_len = options.output_len,
                             .stages = settings.layout.pipeline};
      measured.results.push_back(TRY(Measure(meter, loaded, whole.widths, options, shape,
                                             {.prefill = !apart, .decode = true})));
    }
  }
  measured.peak_resident_bytes = PeakResidentBytes();
  return std::optional(std::move(measured));
}

Status BenchOffline(OfflineOptions options) {
  options.engine.ops = TRY(OpsFor(options.engine));
  // Never beside the model: the memory to be read may not fit. A GPU before, because it is slower
  // while freed memory is cleared; a CPU after, so that the model's peak memory is its own.
  std::optional<Machine> gpu;
  if (options.engine.ops.starts_with("cuda")) gpu = TRY(MeasureMachine(options));
  const std::optional<MeasuredModel> model = TRY(MeasureModel(options));
  if (!model) {
    LOG_WARNING("host 0 says what was measured");
    return {};
  }
  const Machine machine = gpu ? *gpu : TRY(MeasureMachine(options));
  options.json ? PrintJson(options, *model, machine) : PrintTable(options, *model, machine);
  return {};
}

void AddRunFlags(CLI::App& command, OfflineOptions* options) {
  const char* group = "Measurement";
  // Without allow_extra_args(false) a list takes all words up to the next flag, MODEL too.
  command.add_option("--batch-size", options->batch_sizes, "Requests at the same time, as 1,8,32")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 65536))
      ->default_str("1")
      ->group(group);
  command.add_option("--input-len", options->input_lens, "Tokens of each prompt, as 1024,4096")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 1 << 20))
      ->default_str("512")
      ->group(group);
  command
      .add_option("--prefill-len", options->prefill_lens,
                  "Time the prefill of one prompt of each of these lengths, at least three times, "
                  "instead of that of every batch")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 1 << 20))
      ->group(group);
  command.add_option("--output-len", options->output_len, "Decode steps that are timed")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(group);
  command.add_option("--repeats", options->repeats, "Runs of each, of which the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--read-bytes", options->read_bytes,
                  "Memory over which the read bandwidth is measured: far more than the caches hold")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(int64_t{1} << 20, int64_t{1} << 40))
      ->default_str("4GiB")
      ->group(group);
  command
      .add_option(
          "--synthetic-routing", options->engine.synthetic_routing,
          "Draw each token's experts at random in the router's stead: uniform, zipf, or a "
          "file with the experts' shares, a line for each layer with experts or one line for all. "
          "Random weights route nearly all tokens alike")
      ->check([](const std::string& name) {
        return name.empty() ? "it is empty: say uniform, zipf or a file, or leave it out" : "";
      })
      ->group(group);
  command
      .add_option("--synthetic-acceptance", options->engine.synthetic_acceptance,
                  "Let this share of drafts stand, drawn at random, whatever the model says: no "
                  "guess of random weights is right. With --speculative-config")
      ->check(CLI::Range(0.0, 1.0))
      ->group(group);
  command.add_option("--seed", options->seed, "Of the prompts' random tokens")
      ->capture_default_str()
      ->group(group);
  command.add_option("--temperature", options->temperature, "Of sampling; 0: greedy")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str()
      ->group(group);
  command.add_flag("--json", options->json, "One JSON object instead of a table")->group(group);
}

}  // namespace

void AddBenchOffline(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand(
      "offline",
      "Prefill and decode tokens per second, and their shares of what this machine can read and "
      "compute, measured in the same run.");
  auto options = std::make_shared<OfflineOptions>();
  AddRunFlags(*command, options.get());
  AddEngineFlags(*command, &options->engine);
  AddHostFlags(*command, &options->engine.hosts);
  command->get_option("model")->required(false);
  command->get_option("--max-num-seqs")
      ->check([](const std::string&) { return "it is the largest --batch-size: leave it out"; })
      ->description("Not to be given: it is the largest --batch-size");
  AddLogLevel(*command, "warning");
  TakeWhatRunsAnyway(*command);
  OnRun(*command, exit_code, [options] { return BenchOffline(*options); });
}

}  // namespace fathom
