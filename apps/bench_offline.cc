// fathom bench offline: the engine's speed, and how much of the machine it uses.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "bench.h"
#include "bench_meter.h"
#include "bench_step_work.h"
#include "cpu/cpu_stream.h"
#include "cpu/peak.h"
#include "engine_flags.h"
#include "usage.h"

namespace fathom {
namespace {

namespace json = boost::json;

struct OfflineOptions {
  EngineSettings engine;
  std::vector<int32_t> batch_sizes = {1};
  std::vector<int32_t> input_lens = {512};
  std::vector<int32_t> prefill_lens;  // timed alone; none: with each batch
  int32_t output_len = 64;
  int32_t repeats = 3;
  int64_t read_bytes = int64_t{4} << 30;
  uint64_t seed = 0;
  float temperature = 0;
  bool json = false;
};

struct Machine {
  std::string name, driver;  // driver: of a GPU
  int threads = 0;
  double read_bandwidth = 0;  // bytes per second
  ArithmeticPeaks peaks;
  std::optional<double> fp8_peak;  // of a GPU

  // Seconds below which nothing with these limits computes `work`.
  double Floor(const StepWork& work, bool linear_in_fp8) const {
    const double most = std::max({peaks.fp32, peaks.bf16.value_or(0), peaks.int8.value_or(0)});
    const double of_linear = linear_in_fp8 ? fp8_peak.value_or(most) : most;
    const double arithmetic =
        work.linear_operations / of_linear + (work.operations - work.linear_operations) / most;
    return std::max(arithmetic, work.bytes() / read_bandwidth);
  }
};

struct BatchResult {
  BatchShape shape;
  std::vector<double> prefill_runs, decode_runs;  // tokens per second
  std::vector<double> step_seconds;               // of all decode steps
  double context = 0;
  double experts = 0;     // DecodeTimes'
  StepWork step;          // of decode
  StepWork prefill_work;  // of all prompts

  double prompt_tokens() const { return double{1} * shape.batch_size * shape.input_len; }
  double prefill() const { return Median(prefill_runs); }  // of a run that has it
  double prefill_rate() const { return prefill_work.operations / prompt_tokens() * prefill(); }
  double decode() const { return Median(decode_runs); }
  double steps_per_s() const { return decode() / shape.batch_size; }
};

// Of the formats that the loaded model has.
WeightWidths WidthsOf(const ModelWeights& weights) {
  const AttentionWeights& attention = weights.layers.front().attention;
  return {.linear = WidthOf(attention.o.weight->format),
          .absorbed = WidthOf(attention.w_uk.weight->format),
          .head = WidthOf(weights.lm_head.weight->format),
          .embedding = static_cast<double>(ByteSize(weights.embedding.view.dtype()))};
}

constexpr int32_t kLeastPrefills = 3;  // of prompts that are timed alone

// What a run times.
struct Timed {
  bool prefill = true, decode = true;
};

Result<BatchResult> Measure(EngineMeter& meter, const LoadedEngine& loaded,
                            const OfflineOptions& options, const BatchShape& shape, Timed timed) {
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
  const Model& model = *loaded.model;
  const WeightWidths widths = WidthsOf(model.weights());
  const bool absorbed = shape.input_len <= model.options().absorbed_row_limit;
  result.step = WorkOf({.rows = shape.batch_size,
                        .context = result.context,
                        .absorbed = true,
                        .experts = result.experts},
                       loaded.config, widths, model.kv_format());
  result.prefill_work =
      WorkOf({.rows = shape.batch_size, .tokens = shape.input_len, .absorbed = absorbed},
             loaded.config, widths, model.kv_format());
  return result;
}

// Routed experts among those of the last MoE layer's first `rows` tokens. THREAD: the engine's.
double CountExperts(const LoadedEngine& loaded, int32_t rows) {
  const TensorView ids = First(loaded.model->expert_ids(), rows);
  std::vector<int32_t> chosen(static_cast<size_t>(ids.elements()));
  Device& device = *loaded.backend.device;
  device.Download(std::as_writable_bytes(std::span(chosen)), ids);
  device.WaitFor(device.Mark());
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

// What is left of a model once its memory is given back.
struct MeasuredModel {
  std::string name;
  int32_t layers = 0;
  std::string_view weights, kv_cache;
  size_t weight_bytes = 0;
  int64_t peak_resident_bytes = 0;
  bool linear_in_fp8 = false;  // FP8 weights that meet FP8 activations
  std::vector<BatchResult> results, prefills;
};

json::value OrNull(const std::optional<double>& value, double unit) {
  return value ? json::value(*value / unit) : json::value();
}

json::object PeakShares(const Machine& machine, double operations_per_s) {
  const auto share = [&](const std::optional<double>& peak) {
    return peak ? json::value(operations_per_s / *peak) : json::value();
  };
  return {{"fp32", operations_per_s / machine.peaks.fp32},
          {"bf16", share(machine.peaks.bf16)},
          {"int8", share(machine.peaks.int8)},
          {"fp8", share(machine.fp8_peak)}};
}

// The fastest arithmetic that the machine has.
std::pair<const char*, double> HighestPeak(const ArithmeticPeaks& peaks) {
  std::pair<const char*, double> highest = {"fp32", peaks.fp32};
  if (peaks.bf16.value_or(0) > highest.second) highest = {"bf16", *peaks.bf16};
  if (peaks.int8.value_or(0) > highest.second) highest = {"int8", *peaks.int8};
  return highest;
}

json::array Array(const std::vector<double>& values) {
  return json::array(values.begin(), values.end());
}

json::object ToJson(const BatchResult& r, const MeasuredModel& model, const Machine& machine) {
  json::object out = {{"batch_size", r.shape.batch_size}, {"input_len", r.shape.input_len}};
  if (!r.prefill_runs.empty()) {
    const auto [name, peak] = HighestPeak(machine.peaks);
    const double floor = machine.Floor(r.prefill_work, model.linear_in_fp8);
    out["prefill_tokens_per_s"] = r.prefill();
    out["prefill_runs"] = Array(r.prefill_runs);
    out["prefill_operations_per_token"] = r.prefill_work.operations / r.prompt_tokens();
    out["peak_share"] = r.prefill_rate() / peak;
    out["peak_share_of"] = name;
    out["peak_shares"] = PeakShares(machine, r.prefill_rate());
    out["prefill_floor_ms"] = 1e3 * floor;
    out["prefill_floor_share"] = floor * r.prefill() / r.prompt_tokens();
  }
  if (!r.decode_runs.empty()) {
    const double floor = machine.Floor(r.step, model.linear_in_fp8);
    out["decode_tokens_per_s"] = r.decode();
    out["decode_runs"] = Array(r.decode_runs);
    out["decode_step_ms"] = 1e3 * Median(r.step_seconds);
    out["decode_context"] = r.context;
    out["experts_per_layer"] = r.experts;
    out["unique_bytes_per_step"] = r.step.bytes();
    out["weight_bytes_per_step"] = r.step.weight_bytes;
    out["cache_bytes_per_step"] = r.step.cache_read_bytes + r.step.cache_written_bytes;
    out["operations_per_step"] = r.step.operations;
    out["bandwidth_share"] = r.step.bytes() * r.steps_per_s() / machine.read_bandwidth;
    out["decode_peak_shares"] = PeakShares(machine, r.step.operations * r.steps_per_s());
    out["decode_floor_ms"] = 1e3 * floor;
    out["decode_floor_share"] = floor * r.steps_per_s();
  }
  return out;
}

void PrintJson(const OfflineOptions& o, const MeasuredModel& model, const Machine& machine) {
  json::object out = RunRecord();
  out["benchmark"] = "offline";
  out["model"] = model.name;
  out["load_format"] = o.engine.load_format;
  out["num_layers"] = model.layers;
  out["weights"] = model.weights;
  out["kv_cache"] = model.kv_cache;
  out["ops"] = o.engine.ops;
  out["device"] = machine.name;
  if (!machine.driver.empty()) out["cuda_driver"] = machine.driver;
  out["threads"] = machine.threads;
  out["output_len"] = o.output_len;
  out["repeats"] = o.repeats;
  out["temperature"] = o.temperature;
  out["read_bandwidth_gb_s"] = machine.read_bandwidth / 1e9;
  out["fp32_peak_gflops"] = machine.peaks.fp32 / 1e9;
  out["bf16_peak_gflops"] = OrNull(machine.peaks.bf16, 1e9);
  out["int8_peak_gops"] = OrNull(machine.peaks.int8, 1e9);
  out["fp8_peak_gflops"] = OrNull(machine.fp8_peak, 1e9);
  out["weight_bytes"] = model.weight_bytes;
  out["peak_resident_bytes"] = model.peak_resident_bytes;
  json::array results, prefills;
  for (const BatchResult& r : model.results) results.push_back(ToJson(r, model, machine));
  for (const BatchResult& r : model.prefills) prefills.push_back(ToJson(r, model, machine));
  // The first batch size once more, for whoever wants one number.
  for (const auto& member : results.front().as_object()) {
    out.insert_or_assign(member.key(), member.value());
  }
  out["results"] = std::move(results);
  out["prefills"] = std::move(prefills);
  fmt::print("{}\n", json::serialize(out));
}

std::string Percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

std::string PercentOf(const std::optional<double>& peak, double rate) {
  return peak ? Percent(rate / *peak) : "-";
}

std::string PeakText(const std::optional<double>& peak) {
  return peak ? fmt::format("{:.0f}", *peak / 1e9) : "not available";
}

void PrintTable(const OfflineOptions& o, const MeasuredModel& model, const Machine& m) {
  fmt::print("{}, {} layers, {} weights{}, {} KV cache, ops {}; {} decode steps, median of {}{}\n",
             model.name, model.layers, model.weights,
             o.engine.load_format == "dummy" ? " (random)" : "", model.kv_cache, o.engine.ops,
             o.output_len, o.repeats,
             o.prefill_lens.empty()
                 ? ""
                 : fmt::format(", prefills of {}", std::max(o.repeats, kLeastPrefills)));
  fmt::print(
      "{}{}: reads {:.1f} GB/s; peaks in 10^9 operations/s: fp32 {}, bf16 {}, int8 {}, fp8 {}\n",
      m.name, m.driver.empty() ? fmt::format(", {} threads", m.threads) : "",
      m.read_bandwidth / 1e9, PeakText(m.peaks.fp32), PeakText(m.peaks.bf16),
      PeakText(m.peaks.int8), PeakText(m.fp8_peak));
  fmt::print("weights {:.2f} GB; the process had at most {:.2f} GB\n",
             static_cast<double>(model.weight_bytes) / 1e9,
             static_cast<double>(model.peak_resident_bytes) / 1e9);
  fmt::print("floor: the bytes at the read bandwidth, or the operations at the peaks\n\n");
  const char* prefill = "{:>6} {:>7} | {:>9} {:>8} {:>8} {:>8} {:>8} {:>9}\n";
  fmt::print(fmt::runtime(prefill), "", "prompt", "prefill", "of fp32", "of bf16", "of int8",
             "of fp8", "of the");
  fmt::print(fmt::runtime(prefill), "batch", "tokens", "tokens/s", "peak", "peak", "peak", "peak",
             "floor");
  for (const std::vector<BatchResult>* results : {&model.prefills, &model.results}) {
    for (const BatchResult& r : *results) {
      if (r.prefill_runs.empty()) continue;
      const double rate = r.prefill_rate(), floor = m.Floor(r.prefill_work, model.linear_in_fp8);
      fmt::print(fmt::runtime(prefill), r.shape.batch_size, r.shape.input_len,
                 fmt::format("{:.1f}", r.prefill()), Percent(rate / m.peaks.fp32),
                 PercentOf(m.peaks.bf16, rate), PercentOf(m.peaks.int8, rate),
                 PercentOf(m.fp8_peak, rate), Percent(floor * r.prefill() / r.prompt_tokens()));
    }
  }
  const char* decode = "{:>6} {:>7} | {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>9}\n";
  fmt::print("\n");
  fmt::print(fmt::runtime(decode), "", "prompt", "decode", "ms", "unique", "Gop", "of read",
             "floor,", "of the");
  fmt::print(fmt::runtime(decode), "batch", "tokens", "tokens/s", "a step", "GB/step", "a step",
             "bandwidth", "ms", "floor");
  for (const BatchResult& r : model.results) {
    const double floor = m.Floor(r.step, model.linear_in_fp8);
    fmt::print(
        fmt::runtime(decode), r.shape.batch_size, r.shape.input_len,
        fmt::format("{:.1f}", r.decode()), fmt::format("{:.2f}", 1e3 * Median(r.step_seconds)),
        fmt::format("{:.4f}", r.step.bytes() / 1e9), fmt::format("{:.3f}", r.step.operations / 1e9),
        Percent(r.step.bytes() * r.steps_per_s() / m.read_bandwidth),
        fmt::format("{:.2f}", 1e3 * floor), Percent(floor * r.steps_per_s()));
  }
}

Result<Machine> MeasureMachine(const OfflineOptions& options) {
  LOG_INFO("measuring this machine");
  if (options.engine.ops.starts_with("cuda")) {
    const GpuMachine gpu = TRY(MeasureGpu(std::max(options.engine.gpu, 0), options.read_bytes));
    return Machine{.name = gpu.name,
                   .driver = gpu.driver,
                   .read_bandwidth = gpu.read_bandwidth,
                   .peaks = {.fp32 = gpu.fp32_peak, .bf16 = gpu.bf16_peak, .int8 = {}},
                   .fp8_peak = gpu.fp8_peak > 0 ? std::optional(gpu.fp8_peak) : std::nullopt};
  }
  ThreadPool pool(options.engine.threads);
  return Machine{.name = CpuModelName(),
                 .threads = pool.threads(),
                 .read_bandwidth = MeasureReadBandwidth(pool, options.read_bytes),
                 .peaks = MeasureArithmeticPeaks(pool)};
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
                           .output_len = options.output_len};
  s.max_num_seqs = largest.batch_size;
  s.FillDefaults();
  if (s.max_model_len == 0) {
    s.max_model_len = static_cast<int32_t>(std::max<int64_t>(
        EngineMeter::MaxPositions(largest, s.prefill_chunk), most(options.prefill_lens) + 1));
  }
  return s;
}

Result<MeasuredModel> MeasureModel(const OfflineOptions& options) {
  const EngineSettings settings = SettingsFor(options);
  EngineMeter meter(options.seed, options.temperature);
  LoadedEngine loaded = TRY(AssembleEngine(
      settings, [&](std::vector<RequestOutput> outputs) { meter.Deliver(outputs); }));
  meter.SetVocabulary(loaded.config.vocab_size);
  if (!loaded.model->expert_ids().absent()) {
    meter.CountExperts([&](int32_t rows) { return CountExperts(loaded, rows); });
  }
  loaded.engine->Start();
  const BatchShape warm_up{.batch_size = settings.max_num_seqs,
                           .input_len = std::min(options.input_lens.front(), 64),
                           .output_len = std::min(options.output_len, 4)};
  (void)TRY(meter.TimeDecode(*loaded.engine, warm_up));
  const Model& model = *loaded.model;
  MeasuredModel measured{.name = loaded.model_name,
                         .layers = loaded.config.num_layers,
                         .weights = Name(model.weights().layers.front().attention.o.weight->format),
                         .kv_cache = Name(model.kv_format().At(KvPart::kLatent).dtype),
                         .weight_bytes = model.weight_bytes()};
  measured.linear_in_fp8 = model.weights().layers.front().attention.o.weight->quantize_activations;
  const bool apart = !options.prefill_lens.empty();
  for (const int32_t input_len : options.prefill_lens) {
    measured.prefills.push_back(
        TRY(Measure(meter, loaded, options, {.batch_size = 1, .input_len = input_len},
                    {.prefill = true, .decode = false})));
  }
  for (const int32_t input_len : options.input_lens) {
    for (const int32_t batch_size : options.batch_sizes) {
      const BatchShape shape{
          .batch_size = batch_size, .input_len = input_len, .output_len = options.output_len};
      measured.results.push_back(
          TRY(Measure(meter, loaded, options, shape, {.prefill = !apart, .decode = true})));
    }
  }
  measured.peak_resident_bytes = PeakResidentBytes();
  return measured;
}

Status BenchOffline(OfflineOptions options) {
  options.engine.ops = TRY(OpsFor(options.engine.device, options.engine));
  // Never beside the model: the memory to be read may not fit. A GPU before, because it is slower
  // while freed memory is cleared; a CPU after, so that the model's peak memory is its own.
  std::optional<Machine> gpu;
  if (options.engine.ops.starts_with("cuda")) gpu = TRY(MeasureMachine(options));
  const MeasuredModel model = TRY(MeasureModel(options));
  const Machine machine = gpu ? *gpu : TRY(MeasureMachine(options));
  options.json ? PrintJson(options, model, machine) : PrintTable(options, model, machine);
  return {};
}

void AddRunFlags(CLI::App& command, OfflineOptions* options) {
  const char* group = "Measurement";
  command.add_option("--batch-size", options->batch_sizes, "Requests at the same time, as 1,8,32")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536))
      ->default_str("1")
      ->group(group);
  command.add_option("--input-len", options->input_lens, "Tokens of each prompt, as 1024,4096")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->default_str("512")
      ->group(group);
  command
      .add_option("--prefill-len", options->prefill_lens,
                  "Time the prefill of one prompt of each of these lengths, at least three times, "
                  "instead of that of every batch")
      ->delimiter(',')
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
  command->get_option("model")->required(false);
  command->get_option("--max-num-seqs")
      ->check([](const std::string&) { return "it is the largest --batch-size: leave it out"; })
      ->description("Not to be given: it is the largest --batch-size");
  AddLogLevel(*command, "warning");
  OnRun(*command, exit_code, [options] { return BenchOffline(*options); });
}

}  // namespace fathom
