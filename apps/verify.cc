// `fathom verify`: a checkpoint on a chosen op table against what another implementation computed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "backends.h"
#include "commands.h"
#include "engine_flags.h"
#include "reference_file.h"
#include "usage.h"
#include "verification.h"

namespace fathom {
namespace {

struct VerifyOptions : BackendSettings {
  std::string model, reference;
  int64_t prefill_chunk = 512;
  int64_t absorbed_row_limit = -1;
  int64_t context_chunk = 0;
  bool json = false;
};

// A BF16 cache costs some 1e-3, more where rounding turns a router, an FP8 one 2e-2; quantising
// activations to E4M3 costs some 5e-2 on a trained model, whoever does it (tests/golden/README.md).
double Limit(const VerifyOptions& options, Model& model) {
  // Somewhat more than tiny-r1 shows: its tokens must not be lost, its logits move.
  if (options.quantization == "int4") return 4e-1;
  if (options.quantization == "int8") return 5e-2;
  if (options.ops.ends_with("-fp8") && model.config().fp8) return 1e-1;
  const DType latent = model.kv_format().At(KvPart::kLatent).dtype;
  if (latent == DType::kF8E4M3) return 5e-2;
  const bool exact = latent == DType::kF32 && model.runner().ops().activation == DType::kF32;
  return exact ? kExactLimit : 2e-2;
}

// REQUIRES: options.ops is there.
Result<VerifyReport> Verify(const VerifyOptions& options) {
  const Backend backend =
      TRY(MakeBackend(options.ops, options.threads, options.gpu, options.quantization));
  const Checkpoint checkpoint = TRY(Checkpoint::Open(options.model));
  const ModelConfig& config = checkpoint.config();
  const std::vector<ReferencePrompt> prompts =
      TRY(ReadReference(options.reference, config.vocab_size));
  int64_t longest = 0;
  for (const ReferencePrompt& p : prompts) {
    longest = std::max(longest, static_cast<int64_t>(p.prompt.size() + p.greedy.size()));
    if (!p.draft.empty() && config.num_mtp_layers == 0) {
      return InvalidArgument("{} has drafts, and the model has no MTP layer", options.reference);
    }
  }
  Ops ops = *backend.ops;
  if (options.context_chunk > 0) ops.context_chunk = options.context_chunk;
  const std::unique_ptr<Model> model =
      TRY(Model::Load(checkpoint, ops, *backend.device,
                      {.max_tokens = options.prefill_chunk,
                       .max_rows = 1,
                       .max_logit_vectors = 64,
                       .max_model_len = longest,
                       .absorbed_row_limit = options.absorbed_row_limit,
                       .kv_cache = TRY(ParseKvCacheDType(options.kv_cache_dtype))},
                      /*progress=*/nullptr));

  VerifyReport report;
  report.limit = Limit(options, *model);
  report.tokens_must_match = report.limit == kExactLimit;
  Verification verification(*model, *backend.device, options.prefill_chunk);
  for (const ReferencePrompt& p : prompts) {
    verification.Run(p, report);
    TRY(backend.device->status());  // once it failed, what was compared means nothing
  }
  return report;
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
  command->add_option("--prefill-chunk", options->prefill_chunk, "Longest row of a prefill")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option("--absorbed-row-limit", options->absorbed_row_limit,
                      "Rows of up to this many tokens attend in latent space, longer ones on "
                      "expanded keys and values; -1: what costs fewer operations");
  command
      ->add_option("--context-chunk", options->context_chunk,
                   "Positions whose keys and values are expanded at a time; 0: what suits --ops")
      ->check(CLI::Range(0, 1 << 20));
  command->add_flag("--json", options->json, "Print one JSON object");
  OnRun(*command, exit_code, [options, &exit_code]() -> Status {
    options->ops = TRY(OpsFor(*options));
    const VerifyReport report = TRY(Verify(*options));
    Print(*options, report);
    if (!report.passed()) exit_code = 1;
    return {};
  });
}

}  // namespace fathom
