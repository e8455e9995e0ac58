// `fathom verify`: a checkpoint on a chosen op table against what another implementation computed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <future>
#include <limits>
#include <optional>
#include <string>

#include "backends.h"
#include "base/log.h"
#include "base/numa_node.h"
#include "commands.h"
#include "engine/load_models.h"
#include "engine/rank_executors.h"
#include "engine/step_watch.h"
#include "engine_flags.h"
#include "host_facts.h"
#include "parallel/on_ranks.h"
#include "reference_file.h"
#include "usage.h"
#include "verification.h"

namespace fathom {
namespace {

struct VerifyOptions : BackendSettings {
  std::string model, reference;
  HostsOptions hosts;
  double step_timeout_s = AssemblyOptions().step_timeout_s;
  int64_t prefill_chunk = 512;
  std::string form = "own";
  int64_t context_chunk = 0;
  bool json = false;
};

// A BF16 cache or residual costs some 1e-3, more where rounding turns a router, an FP8 one 2e-2;
// quantising activations to E4M3 costs some 5e-2 on a trained model, whoever does it
// (tests/golden/README.md).
double Limit(const VerifyOptions& options, Model& model) {
  // Somewhat more than tiny-r1 shows: its tokens must not be lost, its logits move.
  if (options.quantization == "int4") return 4e-1;
  if (options.quantization == "int8") return 5e-2;
  // One router that turns moves a prompt by 5e-2; transformers with such activations: 1.2e-1.
  if (options.ops.ends_with("-fp8") && model.config().fp8) {
    return options.ops == "cpu-fp8" ? 1.5e-1 : 1e-1;
  }
  const DType latent = model.kv_format().At(KvPart::kLatent).dtype;
  if (latent == DType::kF8E4M3) return 5e-2;
  const bool exact = latent == DType::kF32 && model.runner().ops().activation == DType::kF32 &&
                     !options.layout.bf16_residual;
  return exact ? kExactLimit : 2e-2;
}

std::optional<AttentionForm> ForcedForm(const std::string& form) {
  if (form == "own") return std::nullopt;
  return form == "expanded" ? AttentionForm::kExpanded : AttentionForm::kAbsorbed;
}

// Tokens of the longest, if the model can compute all of them.
Result<int64_t> LongestOf(const std::vector<ReferencePrompt>& prompts, const ModelConfig& config,
                          const std::string& file) {
  int64_t longest = 0;
  for (const ReferencePrompt& p : prompts) {
    longest = std::max(longest, static_cast<int64_t>(p.prompt.size() + p.greedy.size()));
    if (!p.draft.empty() && config.num_mtp_layers == 0) {
      return InvalidArgument("{} has drafts, and the model has no MTP layer", file);
    }
  }
  return longest;
}

// By what is computed: hosts of other prompts would be at other steps. One host has none to tell.
Result<std::string> ReferenceFact(const VerifyOptions& options, const ModelConfig& config) {
  if (options.hosts.count == 1) return std::string();
  const std::vector<ReferencePrompt> prompts =
      TRY(ReadReference(options.reference, config.vocab_size));
  std::string tokens;
  for (const ReferencePrompt& p : prompts) {
    for (const std::vector<TokenId>* of : {&p.prompt, &p.greedy, &p.draft}) {
      for (const TokenId token : *of) tokens += fmt::format("{} ", Raw(token));
      tokens += '\n';
    }
  }
  return "prompts with hash " + HashOf(tokens);
}

// Nothing on a host without ranks of the last stage, which alone has logits.
// REQUIRES: options.ops is there.
Result<std::optional<VerifyReport>> Verify(const VerifyOptions& options) {
  Checkpoint checkpoint = TRY(Checkpoint::Open(options.model));
  const ModelConfig& config = checkpoint.config();
  const std::unique_ptr<Hosts> hosts =
      TRY(JoinHosts(options.hosts, options, options.ops, checkpoint,
                    {{"--reference", TRY(ReferenceFact(options, config))},
                     {"--prefill-chunk", std::to_string(options.prefill_chunk)},
                     {"--form", options.form},
                     {"--context-chunk", std::to_string(options.context_chunk)}}));
  const Backend backend = TRY(MakeBackend(options.ops, options, hosts.get()));
  const std::vector<ReferencePrompt> prompts =
      TRY(ReadReference(options.reference, config.vocab_size));
  const int64_t longest = TRY(LongestOf(prompts, config, options.reference));
  Ops ops = *backend.ops;
  if (options.context_chunk > 0) ops.context_chunk = options.context_chunk;
  const std::vector<EngineRank> ranks = backend.Ranks();
  const int count = static_cast<int>(ranks.size());
  const ModelOptions model_options = {.max_tokens = options.prefill_chunk,
                                      .max_rows = 1,
                                      .max_logit_vectors = 64,
                                      .max_model_len = longest,
                                      .kv_cache = TRY(ParseKvCacheDType(options.kv_cache_dtype))};
  const std::vector<std::unique_ptr<Model>> models =
      TRY(LoadModels(checkpoint, ops, ranks, model_options, /*progress=*/nullptr));
  std::vector<std::unique_ptr<Verification>> verifications(ranks.size());
  std::vector<VerifyReport> reports(ranks.size());
  const auto on_failure = FailTogether(ranks, options.step_timeout_s);
  // What allocates ends on all ranks before one waits for another.
  TRY(OnRanks(count, [&](int rank) -> Status {
    const auto at = static_cast<size_t>(rank);
    Device& device = *ranks[at].device;
    const OnCpus near(device.near_cpus());
    device.BindThread();
    verifications[at] = std::make_unique<Verification>(*models[at], device, options.prefill_chunk,
                                                       ForcedForm(options.form));
    device.stream().Synchronize();
    return {};
  }));
  TRY(OnRanks(count, [&](int rank) -> Status {
    const auto at = static_cast<size_t>(rank);
    Device& device = *ranks[at].device;
    const OnCpus near(device.near_cpus());  // the thread that compares too
    // A CPU's step takes as long as it takes: it is for other ranks that it waits in vain.
    const double most_s = options.ops.starts_with("cuda") ? options.step_timeout_s
                                                          : std::numeric_limits<double>::infinity();
    StepWatch watch(device, backend.first_rank + rank, most_s, on_failure);
    auto compared = std::async(std::launch::async, [&]() -> Status {
      device.BindThread();
      reports[at].limit = Limit(options, *models[at]);
      reports[at].tokens_must_match = reports[at].limit == kExactLimit;
      for (const ReferencePrompt& p : prompts) {
        verifications[at]->Run(p, watch, reports[at]);
        TRY(device.status());  // once it failed, what was compared means nothing
      }
      return {};
    });
    watch.Until(compared);
    return compared.get();
  }));
  if (hosts) (void)TRY(hosts->Least(0));  // none leaves before all have read what it brought
  if (!ranks.back().shard.last_stage()) return std::optional<VerifyReport>();
  VerifyReport& last = reports.back();
  for (size_t i = 0; i < reports.size(); ++i) {
    if (!ranks[i].shard.last_stage()) continue;
    last.ranks_agree &= reports[i].logits_hash == last.logits_hash;
  }
  return std::optional(last);
}

// JSON has no NaN or infinity.
std::string JsonNumber(double x) {
  return std::isfinite(x) ? fmt::format("{:.3e}", x) : "null";
}

void Print(const VerifyOptions& options, const VerifyReport& r) {
  if (options.json) {
    fmt::print(
        "{{\"max_relative_error\": {}, \"median_relative_error\": {}, "
        "\"median_position_error\": {}, \"positions_beyond_limit\": {}, \"greedy_equal\": {}, "
        "\"prompts\": {}, \"greedy_tokens\": {}, \"drafts_equal\": {}, \"draft_tokens\": {}, "
        "\"draft_near_ties\": {}, "
        "\"max_logprob_error\": {}, \"logits_hash\": \"{:016x}\", \"limit\": {}, \"passed\": "
        "{}}}\n",
        JsonNumber(r.max_error()), JsonNumber(r.median_error()),
        JsonNumber(r.median_position_error()), JsonNumber(r.positions_beyond_limit()),
        r.greedy_equal, r.relative_errors.size(), r.greedy_tokens, r.drafts_equal, r.draft_tokens,
        r.draft_near_ties, JsonNumber(r.max_logprob_error), r.logits_hash, JsonNumber(r.limit),
        r.passed());
    return;
  }
  const bool stored = options.quantization == "none";
  fmt::print("{} on the {} ops{}, against {}\n", options.model, options.ops,
             stored ? "" : ", weights as " + options.quantization, options.reference);
  fmt::print("  prompts               {}\n", r.relative_errors.size());
  fmt::print("  relative logit error  max {:.2e}, median {:.2e} (limit {:.0e})\n", r.max_error(),
             r.median_error(), r.limit);
  if (options.layout.world() > 1) {
    fmt::print("  ranks                 {}, of {}\n", options.layout.world(),
               r.ranks_agree ? "the same bits" : "DIFFERENT bits");
  }
  fmt::print("  greedy tokens         {} of {}\n", r.greedy_equal ? "all equal" : "NOT all equal",
             r.greedy_tokens);
  if (r.draft_tokens > 0) {
    fmt::print("  drafts                {} of {} ({} of them near ties)\n",
               r.drafts_equal ? "all equal" : "NOT all equal", r.draft_tokens, r.draft_near_ties);
  }
  fmt::print("{}\n", r.passed() ? "passed" : "FAILED");
}

}  // namespace

void AddVerify(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand(
      "verify", "Compare a checkpoint's logits and tokens with another implementation's.");
  auto options = std::make_shared<VerifyOptions>();
  command
      ->add_option("model", options->model,
                   "A Hugging Face folder, or the hub id of one in the local cache")
      ->required();
  command->add_option("--reference", options->reference, "A safetensors file of reference values")
      ->required();
  options->device.clear();  // not given: that of --ops
  AddBackendFlags(*command, options.get(), "Options");
  AddHostFlags(*command, &options->hosts);
  AddStepTimeout(*command, &options->step_timeout_s, "Options");
  command->add_option("--prefill-chunk", options->prefill_chunk, "Longest row of a prefill")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command
      ->add_option(
          "--form", options->form,
          "Which form of MLA computes a token: own is what a server takes for it, absorbed "
          "attends in latent space, expanded on keys and values projected up per head")
      ->check(CLI::IsMember({"own", "absorbed", "expanded"}))
      ->capture_default_str();
  command
      ->add_option("--context-chunk", options->context_chunk,
                   "Positions whose keys and values are expanded at a time; 0: what suits --ops")
      ->check(CLI::Range(0, 1 << 20));
  command->add_flag("--json", options->json, "Print one JSON object");
  OnRun(*command, exit_code, [options, &exit_code]() -> Status {
    options->ops = TRY(OpsFor(*options));
    const std::optional<VerifyReport> report = TRY(Verify(*options));
    if (!report) {
      LOG_WARNING("the last stage is another host's, which says how its logits compare");
      return {};
    }
    Print(*options, *report);
    if (!report->passed()) exit_code = 1;
    return {};
  });
}

}  // namespace fathom
