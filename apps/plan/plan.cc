// `fathom plan`: what a model would take of GPUs, and how fast it would be, without any.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mmap.h"
#include "checkpoint/folder.h"
#include "commands.h"
#include "engine_flags.h"
#include "gpu_figures.h"
#include "hosts/hosts.h"
#include "ops/cuda_properties.h"
#include "report.h"
#include "usage.h"

namespace fathom {
namespace {

struct PlanOptions {
  EngineSettings engine;  // model, layout and limits of it count
  int gpus = 1;           // of each host
  int hosts = 1;
  double network_gb_s = NetworkFigures().bytes_per_s / 1e9;
  double network_us = NetworkFigures().exchange_s * 1e6;
  bool network_said = false;
  std::string gpu_type = "h200", gpu_file;
  double memory_bytes = 0, bandwidth_gb_s = 0, bf16_tflops = 0, fp8_tflops = 0;
  std::vector<int64_t> batch_sizes = {1, 8, 32, 128};
  int64_t context = -1;  // -1, and none: kUsualLength
  std::vector<int64_t> prefill_lens;
  double experts_per_layer = 0;
  bool json = false;
  bool one_layout = false;  // what is asked for, and not all of so many GPUs
};

constexpr int64_t kUsualLength = 4096;  // or half of --max-model-len, if that is less
constexpr size_t kMaxFiguresBytes = 1 << 20;
constexpr int kMostGpusOfHost = 8;

Result<GpuFigures> FiguresOf(const PlanOptions& o) {
  Result<GpuFigures> gpu = GpuType(o.gpu_type);
  if (!o.gpu_file.empty()) {
    gpu = ParseGpuFigures(TRY(ReadFile(o.gpu_file, kMaxFiguresBytes)));
    if (!gpu.ok()) return gpu.status().WithContext("--gpu-file " + o.gpu_file);
  }
  TRY(gpu.status());
  if (o.memory_bytes > 0) gpu->memory_bytes = o.memory_bytes;
  if (o.bandwidth_gb_s > 0) gpu->read_bytes_per_s = 1e9 * o.bandwidth_gb_s;
  if (o.bf16_tflops > 0) gpu->bf16_operations_per_s = 1e12 * o.bf16_tflops;
  if (o.fp8_tflops > 0) gpu->fp8_operations_per_s = 1e12 * o.fp8_tflops;
  return gpu;
}

LayoutReport Predict(const PlanOptions& o, const StepTimeModel& model, LayoutPlan plan) {
  LayoutReport report{.plan = std::move(plan)};
  const EngineLimits& limits = o.engine;
  const int64_t groups = model.layout.data;
  const int64_t room = report.plan.group_cache_tokens();
  for (const int64_t batch : o.batch_sizes) {
    PlannedDecode decode{.batch = batch};
    const int64_t pages = (o.context + kPageTokens) / kPageTokens;  // with the token that is drawn
    decode.too_many = batch > limits.max_num_seqs;
    decode.fits = !decode.too_many && batch * pages * kPageTokens <= room;
    decode.parts = PartsOfStep(model, {.rows = batch,
                                       .context = static_cast<double>(o.context),
                                       .groups = groups,
                                       .experts = o.experts_per_layer});
    decode.seconds = Seconds(decode.parts);
    decode.tokens_per_s = static_cast<double>(batch * groups) / decode.seconds;
    report.decodes.push_back(std::move(decode));
  }
  for (const int64_t tokens : o.prefill_lens) {
    report.prefills.push_back(
        {.tokens = tokens, .seconds = PrefillSeconds(model, tokens, limits.prefill_chunk)});
  }
  return report;
}

Result<ModelConfig> ConfigOf(const PlanOptions& o) {
  if (o.engine.model.empty() == o.engine.config_preset.empty()) {
    return InvalidArgument("say which model: its folder, or --config-preset, and not both");
  }
  return DummyConfig(o.engine);
}

Status CheckShape(const PlanOptions& o, const ModelConfig& config) {
  const int64_t longest = *std::max_element(o.prefill_lens.begin(), o.prefill_lens.end());
  const int64_t most = o.engine.max_model_len;
  if (most > config.max_position_embeddings) {
    return InvalidArgument("--max-model-len {}: the model was made for {} positions", most,
                           config.max_position_embeddings);
  }
  if (std::max(longest, o.context + 1) > most) {
    return InvalidArgument(
        "--context {} and --prefill-len {} must be within --max-model-len, which is {}", o.context,
        longest, most);
  }
  if (o.experts_per_layer > config.n_routed_experts) {
    return InvalidArgument("--experts-per-layer {}: the model has {}", o.experts_per_layer,
                           config.n_routed_experts);
  }
  if (o.experts_per_layer > 0 && o.experts_per_layer < config.num_experts_per_tok) {
    return InvalidArgument("--experts-per-layer {}: a single token draws {}", o.experts_per_layer,
                           config.num_experts_per_tok);
  }
  return {};
}

Result<ReportedHosts> HostsOf(const PlanOptions& o, int gpus) {
  TRY(CheckDealt(o.hosts, gpus));
  return ReportedHosts{.count = o.hosts,
                       .gpus_each = gpus / o.hosts,
                       .network = {1e9 * o.network_gb_s, 1e-6 * o.network_us},
                       .assumed = !o.network_said};
}

Result<PlanReport> MakeReport(PlanOptions o) {
  const GpuFigures gpu = TRY(FiguresOf(o));
  const ModelConfig config = TRY(ConfigOf(o));
  EngineLimits& limits = o.engine;
  limits.FillDefaults(/*gpu=*/true);
  limits.speculation = Speculation::Default(config.num_mtp_layers);
  if (limits.max_model_len == 0) limits.max_model_len = config.max_position_embeddings;
  const int64_t usual = std::min<int64_t>(kUsualLength, limits.max_model_len / 2);
  if (o.context < 0) o.context = usual;
  if (o.prefill_lens.empty()) o.prefill_lens = {std::max<int64_t>(usual, 1)};
  TRY(CheckShape(o, config));
  const Ops ops = CudaProperties(gpu.hopper);
  const AssemblyOptions options = {.limits = limits,
                                   .kv_cache = TRY(ParseKvCacheDType(o.engine.kv_cache_dtype))};
  const DType kv_dtype = options.kv_cache.value_or(ops.kv_cache);
  const KvFormat kv = MakeKvFormat(config, kv_dtype);
  PlanReport report{
      .model = o.engine.config_preset.empty() ? ModelName(o.engine.model) : o.engine.config_preset,
      .config = config,
      .kv_cache = std::string(Name(kv_dtype)),
      .gpu = gpu,
      .figures_given =
          std::max({o.memory_bytes, o.bandwidth_gb_s, o.bf16_tflops, o.fp8_tflops}) > 0,
      .context = o.context};
  const auto layouts = o.one_layout ? std::vector{o.engine.layout}
                                    : LayoutsOf(o.gpus * o.hosts, config.n_routed_experts > 0);
  if (o.hosts > 1) report.hosts = TRY(HostsOf(o, layouts[0].world()));
  if (const int each = layouts[0].world() / o.hosts; each > kMostGpusOfHost) {
    return InvalidArgument("{} GPUs of a host: at most {}; say --nnodes, with more hosts", each,
                           kMostGpusOfHost);
  }
  const TensorSizes sizes = PublishedSizes(config);
  const PlannedModel planned = {config, sizes, ops};
  for (const ParallelLayout& layout : layouts) {
    auto plan = PlanLayout(planned, layout, options,
                           {static_cast<int64_t>(gpu.memory_bytes), report.hosts.gpus_each});
    if (!plan.ok()) {
      report.refused.emplace_back(layout, plan.status().message());
      continue;
    }
    report.layouts.push_back(
        Predict(o, {planned, kv, gpu, layout, report.hosts.gpus_each, report.hosts.network},
                *std::move(plan)));
  }
  std::stable_sort(
      report.layouts.begin(), report.layouts.end(),
      [](const LayoutReport& a, const LayoutReport& b) { return a.latency() < b.latency(); });
  return report;
}

void AddGpuFlags(CLI::App& command, PlanOptions& o) {
  const char* group = "GPU";
  command
      .add_option(
          "--gpu-type", o.gpu_type,
          fmt::format("The GPU, of those whose measured figures are in this binary: {}", kGpuTypes))
      ->check(CLI::IsMember({"h200"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--gpu-file", o.gpu_file,
          "A file with the figures of another GPU, in place of --gpu-type; the form is that of "
          "apps/plan/gpu_types/h200.json among the sources")
      ->type_name("FILE")
      ->group(group);
  command
      .add_option("--gpu-memory", o.memory_bytes,
                  "Memory of each GPU that a fresh process finds free, as 80GB or 74GiB; "
                  "without it that of --gpu-type")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(Between(1, 1e18))
      ->group(group);
  command
      .add_option(
          "--gpu-bandwidth", o.bandwidth_gb_s,
          "GB/s (10^9 bytes) at which a GPU reads its memory; without it that of --gpu-type")
      ->check(Between(1, 1e6))
      ->group(group);
  command
      .add_option(
          "--gpu-bf16-tflops", o.bf16_tflops,
          "Peak of BF16 products, in 10^12 operations a second; without it that of --gpu-type")
      ->check(Between(1, 1e6))
      ->group(group);
  command
      .add_option(
          "--gpu-fp8-tflops", o.fp8_tflops,
          "Peak of FP8 products, in 10^12 operations a second; without it that of --gpu-type")
      ->check(Between(1, 1e6))
      ->group(group);
}

constexpr const char* kLayoutFlags[] = {"--tensor-parallel-size", "--data-parallel-size",
                                        "--pipeline-parallel-size", "--enable-expert-parallel"};

void AddHostCount(CLI::App& command, PlanOptions& o, const char* group) {
  auto* hosts = command
                    .add_option("--nnodes", o.hosts,
                                "Hosts, each with --gpus GPUs, or with equally many of those that "
                                "the sizes below make")
                    ->check(CLI::Range(1, 64))
                    ->capture_default_str()
                    ->group(group);
  command
      .add_option("--network-bandwidth", o.network_gb_s,
                  "GB/s (10^9 bytes) that each GPU sends to other hosts while it gets as much; "
                  "assumed unless it is said: it was not measured")
      ->check(Between(0.001, 1e6))
      ->capture_default_str()
      ->needs(hosts)
      ->group(group);
  command
      .add_option(
          "--network-latency", o.network_us,
          "Microseconds that an exchange between hosts takes, however few its bytes; assumed "
          "likewise")
      ->check(Between(0, 1e6))
      ->capture_default_str()
      ->needs(hosts)
      ->group(group);
}

void AddWhichLayouts(CLI::App& command, PlanOptions& o) {
  const char* group = "Layout";
  command
      .add_option("--gpus", o.gpus,
                  "GPUs of each host: all layouts of them are predicted; the sizes below ask for "
                  "one layout instead")
      ->check(CLI::Range(1, kMostGpusOfHost))
      ->capture_default_str()
      ->group(group);
  AddHostCount(command, o, group);
  AddLayoutFlags(command, &o.engine.layout, group);
}

// Whether one layout is asked for, and not all of so many GPUs.
Result<bool> AsksForOne(const CLI::App& command) {
  const auto* flag =
      std::ranges::find_if(kLayoutFlags, [&](const char* name) { return command.count(name) > 0; });
  if (flag == std::end(kLayoutFlags)) return false;
  if (command.count("--gpus") == 0) return true;
  return InvalidArgument(
      "--gpus asks for all layouts of so many GPUs, {} for a single one, of as many GPUs as its "
      "sizes make: leave one of the two out",
      *flag);
}

void AddShapeFlags(CLI::App& command, PlanOptions& o) {
  const char* group = "What is predicted";
  command
      .add_option("--batch-size", o.batch_sizes,
                  "Requests that decode at the same time in each data-parallel group: numbers with "
                  "commas between them, with a column for each")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--context", o.context,
                  "Tokens that each of them has in the KV cache; at most half of --max-model-len "
                  "unless it is said")
      ->transform(Thousands())
      ->check(CLI::Range(0, 1 << 22))
      ->default_str("4096")
      ->group(group);
  command
      .add_option(
          "--prefill-len", o.prefill_lens,
          "Tokens of a prompt that is computed alone: numbers with commas between them, with "
          "a column for each; at most half of --max-model-len unless it is said")
      ->delimiter(',')
      ->transform(Thousands())
      ->check(CLI::Range(1, 1 << 22))
      ->default_str("4096")
      ->group(group);
  command
      .add_option(
          "--experts-per-layer", o.experts_per_layer,
          "Routed experts of a layer that a step of decodes draws in all; 0: as many as if all "
          "were equally likely")
      ->check(Between(0, 65536))
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void AddPlan(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand(
      "plan",
      "Say what a model would take of each GPU's memory, and how fast it would be, without one.");
  auto options = std::make_shared<PlanOptions>();
  command->add_option("model", options->engine.model,
                      "A folder with the model's config.json, or --config-preset");
  command->add_flag("--json", options->json,
                    "Print one JSON object, with every rank, in place of tables");
  AddConfigFlags(*command, &options->engine, "Model");
  AddGpuFlags(*command, *options);
  AddWhichLayouts(*command, *options);
  AddShapeFlags(*command, *options);
  AddLimitFlags(*command, &options->engine, "Engine");
  command
      ->add_option("--kv-cache-dtype", options->engine.kv_cache_dtype,
                   "Numbers of the KV cache: bf16, fp8 (latents in E4M3 with a scale per token, "
                   "rotated keys in BF16: little more than half the bytes), or auto: bf16")
      ->check(CLI::IsMember({"auto", "bf16", "fp8"}))
      ->capture_default_str()
      ->group("Engine");
  OnRun(*command, exit_code, [command, options, &exit_code]() -> Status {
    options->one_layout = TRY(AsksForOne(*command));
    options->network_said =
        command->count("--network-bandwidth") > 0 && command->count("--network-latency") > 0;
    const PlanReport report = TRY(MakeReport(*options));
    options->json ? PrintJson(report) : PrintTable(report);
    if (report.layouts.empty()) exit_code = 1;
    return {};
  });
}

}  // namespace fathom
