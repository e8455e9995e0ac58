#include "engine_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "checkpoint/presets.h"
#include "cpu/cpu_features.h"

namespace fathom {
namespace {

// Of --gpu, where a list is a natural thing to say.
CLI::Validator OneGpu() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        int gpu = 0;
        if (CLI::detail::lexical_cast(text, gpu) && gpu >= 0 && gpu < 1024) return "";
        return fmt::format("{} is not the number of a GPU: the first is 0", text);
      },
      "");
}

// vLLM's names of what is called otherwise here.
CLI::Validator Renamed(std::map<std::string, std::string> names) {
  return CLI::Validator(
      [names = std::move(names)](std::string& text) -> std::string {
        if (const auto found = names.find(text); found != names.end()) text = found->second;
        return "";
      },
      "");
}

// Of sizes, which CLI11 reads as numbers without a sign.
CLI::Validator NotNegative() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        return text.starts_with('-') ? fmt::format("{} is below 0", text) : "";
      },
      "");
}

// What vLLM calls the model's own length.
CLI::Validator ModelsOwnLength() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (text == "auto" || text == "-1") text = "0";
        return "";
      },
      "");
}

void AddDummyFlags(CLI::App& command, EngineSettings* settings) {
  EngineSettings& s = *settings;
  const char* group = "Random weights, to measure a model without its own";
  command
      .add_option("--load-format", s.load_format,
                  "auto: the weights in the folder; dummy: random ones, for which a config.json is "
                  "enough")
      ->transform(Renamed({{"safetensors", "auto"}}))
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str()
      ->group(group);
  AddConfigFlags(command, settings, group);
}

}  // namespace

void AddConfigFlags(CLI::App& command, EngineSettings* settings, const char* group) {
  EngineSettings& s = *settings;
  command
      .add_option("--config-preset", s.config_preset,
                  fmt::format("A published configuration, in place of a folder's config.json: {}",
                              kPresetNames))
      ->group(group);
  command
      .add_option(
          "--dtype", s.dtype,
          "Numbers of the linear layers' weights: fp8, bf16; auto: as the configuration says")
      ->transform(Renamed({{"bfloat16", "auto"}}))
      ->check(CLI::IsMember({"auto", "fp8", "bf16"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--num-layers", s.num_layers, "The first so many layers only; 0: all")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str()
      ->group(group);
}

CLI::Validator Thousands() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        double number = 0;
        if (text.empty() || (text.back() != 'k' && text.back() != 'K')) return "";
        const double times = text.back() == 'k' ? 1000 : 1024;
        if (CLI::detail::lexical_cast(text.substr(0, text.size() - 1), number) && number >= 0 &&
            number < 1e6) {
          text = std::to_string(static_cast<int64_t>(number * times));
        }
        return "";
      },
      "");
}

CLI::Validator Between(double low, double high) {
  return CLI::Validator(
      [low, high](const std::string& text) -> std::string {
        double number = 0;
        if (CLI::detail::lexical_cast(text, number) && number >= low && number <= high) return "";
        return fmt::format("{} is not a number from {} to {}", text, low, high);
      },
      "");
}

void AddLayoutFlags(CLI::App& command, ParallelLayout* layout, const char* group) {
  command
      .add_option(
          "--tensor-parallel-size,--tp", layout->tensor,
          "Cut heads, MLPs and vocabulary over so many ranks: GPUs one after another, or parts "
          "of a CPU")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--pipeline-parallel-size,--pp", layout->pipeline,
          "Stages with some of the layers each, at work on other steps, each of as many ranks as "
          "--tensor-parallel-size and --data-parallel-size make")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--data-parallel-size,--dp", layout->data,
          "Groups of ranks that serve requests of their own, each with --max-num-seqs and a "
          "KV cache, and share the experts")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--enable-expert-parallel", layout->experts,
                "Each routed expert is on one rank of all groups, instead of being cut over ranks")
      ->group(group);
  command
      .add_flag("--bf16-residual", layout->bf16_residual,
                "Stages hand tokens on in BF16: half the bytes of fp32, and other bits than those "
                "of one stage")
      ->group(group);
}

void AddBackendFlags(CLI::App& command, BackendSettings* settings, const char* group) {
  BackendSettings& s = *settings;
  command.add_option("--device", s.device, kDeviceHelp)
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str()
      ->group(group);
  AddLayoutFlags(command, &s.layout, group);
  command.add_option("--ops", s.ops, kBackendHelp)
      ->check(CLI::IsMember({"cpu", "cpu-bf16", "cpu-fp8", "cuda", "cuda-fp8", "cuda-portable",
                             "cuda-portable-fp8", "reference", "reference-fp8"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--gpu", s.gpu, kGpuHelp)->check(OneGpu())->default_str("0")->group(group);
  command.add_option("--quantization,-q", s.quantization, kQuantizationHelp)
      ->check(CLI::IsMember({"none", "fp8", "int8", "int4"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--threads", s.threads, "Threads that compute; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->group(group);
  command
      .add_option_function<std::string>(
          "--cpu-instructions",
          [](const std::string& most) {
            LimitInstructions(most == "portable" ? CpuInstructions::kPortable
                              : most == "avx2"   ? CpuInstructions::kAvx2
                              : most == "avx512" ? CpuInstructions::kAvx512
                              : most == "dots"   ? CpuInstructions::kDots
                                                 : CpuInstructions::kAll);
          },
          "The most that CPU kernels use, to compare or check them: portable, avx2, avx512 "
          "(without its dot products), dots (without AMX), all")
      ->check(CLI::IsMember({"portable", "avx2", "avx512", "dots", "all"}))
      ->default_str("all")
      ->group(group);
  command.add_option("--kv-cache-dtype", s.kv_cache_dtype, kKvCacheHelp)
      ->transform(Renamed({{"fp8_e4m3", "fp8"}, {"bfloat16", "bf16"}}))
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp8"}))
      ->capture_default_str()
      ->group(group);
}

void AddHostFlags(CLI::App& command, HostsOptions* hosts) {
  const char* group = "Several hosts";
  CLI::Option* const count = command.add_option(
      "--nnodes", hosts->count,
      "Hosts that share the ranks of --tp, --pp and --dp, each with equally many: the "
      "same command on each, but for --node-rank");
  count->check(CLI::Range(1, 1024))->capture_default_str()->group(group);
  CLI::Option* const between_hosts[] = {
      command
          .add_option("--node-rank", hosts->index,
                      "Which host this is: 0 answers requests, the others compute for it")
          ->check(CLI::Range(0, 1023))
          ->capture_default_str(),
      command.add_option("--master-addr", hosts->address,
                         "Address of host 0, on which it listens to the others, and on no other"),
      command.add_option("--master-port", hosts->port, "Port of host 0 for the other hosts")
          ->check(CLI::Range(1, 65535))
          ->capture_default_str(),
      command.add_flag("--headless", hosts->headless,
                       "Answer nobody but who asks for /health: as hosts but 0 do without it"),
      command
          .add_option("--hosts-secret-file", hosts->secret_file,
                      "A file with a secret that all hosts have; openssl rand -hex 32 makes one")
          ->type_name("FILE")};
  // One that stood alone would be passed over, and the host would serve by itself.
  for (CLI::Option* option : between_hosts) option->needs(count)->group(group);
}

void AddStepTimeout(CLI::App& command, double* seconds, const char* group) {
  command
      .add_option("--step-timeout", *seconds,
                  "Seconds after which a step that a GPU has not ended never will, nor a rank come "
                  "that others on CPUs wait for: all ends, with an error for every request")
      ->check(Between(0.1, 86400))
      ->capture_default_str()
      ->group(group);
}

void AddTemplateFlag(CLI::App& command, EngineSettings* settings, const char* group) {
  command
      .add_option("--chat-template", settings->chat_template_file,
                  "A Jinja chat template instead of the model's own")
      ->type_name("FILE")
      ->check([](const std::string& file) { return file.empty() ? "the name is empty" : ""; })
      ->group(group);
}

void AddLimitFlags(CLI::App& command, EngineLimits* limits, const char* group) {
  EngineLimits& s = *limits;
  command
      .add_option(
          "--max-model-len", s.max_model_len,
          "Prompt and generated tokens of one request; 0 or auto: what the model was made for")
      ->transform(ModelsOwnLength())
      ->transform(Thousands())
      ->check(CLI::Range(0, 1 << 22))
      ->default_str("auto")
      ->group(group);
  command
      .add_option(
          "--max-num-seqs", s.max_num_seqs,
          "Requests that run at the same time, in each data-parallel group; 0: 32, on a GPU 256")
      ->transform(Thousands())
      ->check(CLI::Range(0, 65536))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--max-num-batched-tokens", s.max_num_batched_tokens,
                  "Tokens in one step of a data-parallel group; 0: 1024, on a GPU 8192, or more if "
                  "--prefill-chunk or "
                  "--max-num-seqs need it")
      ->transform(Thousands())
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--prefill-chunk", s.prefill_chunk,
          "Prompts are computed in chunks that end at multiples of so many tokens; 0: 512, on "
          "a GPU 2048")
      ->transform(Thousands())
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--kv-cache-memory-bytes", s.kv_cache_bytes,
          "Memory of each rank's KV cache, as 1073741824 or 1GiB; 0: enough for --max-num-seqs "
          "requests of --max-model-len, at most 4 GiB, on a GPU at most what is left")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->transform(NotNegative())  // comes first
      ->default_str("0")
      ->group(group);
}

void AddEngineFlags(CLI::App& command, EngineSettings* settings) {
  EngineSettings& s = *settings;
  command
      .add_option("model", s.model,
                  "A Hugging Face folder of a DeepSeek model, or the hub id of one that is in the "
                  "local cache")
      ->required();
  const char* group = "Engine";
  AddBackendFlags(command, settings, group);
  AddLimitFlags(command, settings, group);
  command
      .add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", s.prefix_caching,
                "Requests share the pages of equal beginnings of their prompts, and find those of "
                "earlier ones; it is on unless --no-enable-prefix-caching turns it off")
      ->group(group);
  command
      .add_flag("--prefix-cache-reuse-decoded", s.reuse_decoded,
                "Share pages of generated tokens too, so that a talk's next turn finds its last "
                "answer: then an answer's last bits depend on what was found")
      ->group(group);
  CLI::Option* const speculative_config =
      command
          .add_option(
              "--speculative-config", s.speculative_config,
              "Guess tokens ahead and verify them together, without changing a bit of the "
              "answer: method mtp, the default of models that have a draft layer, asks that "
              "layer; '{\"method\": \"ngram\", \"num_speculative_tokens\": 4}', with "
              "prompt_lookup_min and prompt_lookup_max, guesses that the text repeats itself. "
              "Without num_speculative_tokens there are up to 3, as many as pay")
          ->type_name("JSON")
          ->group(group);
  command
      .add_flag("--no-speculation", s.no_speculation, "No drafts: a draft layer is not even read")
      ->excludes(speculative_config)
      ->group(group);
  command
      .add_flag("--batch-invariance,!--no-batch-invariance", s.batch_invariant,
                "A token's bits do not depend on who shares its step; --no-batch-invariance gives "
                "that up where it costs time: on Hopper, in attention of few requests with more "
                "than 16 heads and of rows with drafts, and in FP8 products of prompts")
      ->group(group);
  AddStepTimeout(command, &s.step_timeout_s, group);
  AddDummyFlags(command, settings);
}

void AddLogLevel(CLI::App& command, const char* otherwise) {
  command
      .add_option_function<std::string>(
          "--log-level",
          [](const std::string& level) { CHECK(SetLogLevel(level), "an unchecked level"); },
          "debug, info, warning, error or off")
      ->default_str(otherwise)
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}));
  command.parse_complete_callback([&command, otherwise] {
    if (command.count("--log-level") == 0) CHECK(SetLogLevel(otherwise), "a known level");
  });
}

}  // namespace fathom
