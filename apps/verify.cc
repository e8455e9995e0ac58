// `fathom verify`: a checkpoint on a chosen op table against what another implementation computed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>

#include "backends.h"
#include "commands.h"
#include "engine_flags.h"
#include "reference_file.h"
#include "sequence_runner.h"
#include "usage.h"

namespace fathom {
namespace {

struct VerifyOptions : BackendSettings {
  std::string model, reference;
  int64_t prefill_chunk = 512;
  int64_t absorbed_row_limit = -1;
  int64_t context_chunk = 0;
  bool json = false;
};

double UpperMedian(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct VerifyReport {
  std::vector<double> relative_errors;  // of each prompt's logits: ||a - b|| / ||b||
  std::vector<double> position_errors;  // of each position's
  double max_logprob_error = 0;         // of the stored likeliest tokens
  bool greedy_equal = true;
  bool drafts_equal = true;
  int64_t greedy_tokens = 0, draft_tokens = 0;
  int64_t draft_near_ties = 0;                // counted as equal: see IsNearTie
  uint64_t logits_hash = 0xcbf29ce484222325;  // FNV-1a of the bits of all logits, in order
  double limit = 0;
  bool tokens_must_match = false;

  double max_error() const {
    return *std::max_element(relative_errors.begin(), relative_errors.end());
  }
  double median_error() const { return UpperMedian(relative_errors); }
  // What rounding costs where it turned no router.
  double median_position_error() const { return UpperMedian(position_errors); }
  double positions_beyond_limit() const {
    const auto beyond = std::count_if(position_errors.begin(), position_errors.end(),
                                      [&](double error) { return !(error <= limit); });
    return static_cast<double>(beyond) / static_cast<double>(position_errors.size());
  }
  bool passed() const {  // written so that NaN fails
    return max_error() <= limit && (!tokens_must_match || (greedy_equal && drafts_equal));
  }
};

// The greatest; ties go to the lower id.
TokenId Argmax(std::span<const float> logits) {
  return TokenId{static_cast<int32_t>(
      std::distance(logits.begin(), std::max_element(logits.begin(), logits.end())))};
}

// Largest |log-probability - stored one| of the stored likeliest tokens of one position.
double LogprobError(std::span<const float> logits, const ReferencePrompt& p, int64_t position) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float x : logits) sum += std::exp(x - top);
  const double log_sum = top + std::log(sum);
  double worst = 0;
  for (int64_t j = position * p.top_width; j < (position + 1) * p.top_width; ++j) {
    const double logprob = logits[static_cast<size_t>(p.top_ids[j])] - log_sum;
    worst = std::max(worst, std::abs(logprob - p.top_logprobs[static_cast<size_t>(j)]));
  }
  return worst;
}

// Exact arithmetic must agree to fp32's rounding. A BF16 cache costs some 1e-3, more where rounding
// turns a router, an FP8 one 2e-2; quantising activations to E4M3 costs some 5e-2 on a trained
// model, whoever does it (tests/golden/README.md).
constexpr double kExactLimit = 1e-4;

// Whether `token` trails the greatest logit by less than kExactLimit times the logits' root mean
// square: two implementations that are each right to that may then choose differently.
bool IsNearTie(std::span<const float> logits, TokenId token) {
  double squares = 0;
  for (float x : logits) squares += double{x} * x;
  const double gap =
      *std::max_element(logits.begin(), logits.end()) - logits[static_cast<size_t>(Raw(token))];
  return gap < kExactLimit * std::sqrt(squares / static_cast<double>(logits.size()));
}

class Verification {
 public:
  Verification(Model& model, Device& device, int64_t prefill_chunk)
      : model_(model), runner_(model, device), prefill_chunk_(prefill_chunk) {}

  void Run(const ReferencePrompt& p, VerifyReport& report) {
    const TokenId next = Prefill(p, report);
    Greedy(p, next, report);
    if (!p.draft.empty()) Drafts(p, report);
  }

 private:
  size_t vocab() const { return static_cast<size_t>(model_.config().vocab_size); }

  std::vector<float> Logits(const TensorView& hidden, VerifyReport& report) {
    std::vector<float> logits = runner_.Logits(hidden, 0, hidden.dim(0));
    for (float x : logits) {
      report.logits_hash = (report.logits_hash ^ std::bit_cast<uint32_t>(x)) * 0x100000001b3;
    }
    return logits;
  }

  // Compares the prompt's logits; returns the likeliest next token.
  TokenId Prefill(const ReferencePrompt& p, VerifyReport& report) {
    double difference = 0, norm = 0;
    size_t at = 0;
    TokenId next{};
    runner_.Restart();
    runner_.Feed(p.prompt, prefill_chunk_, [&](int64_t first, const TensorView& hidden) {
      const std::vector<float> logits = Logits(hidden, report);
      for (int64_t t = 0; t < hidden.dim(0); ++t) {
        const auto mine = std::span(logits).subspan(static_cast<size_t>(t) * vocab(), vocab());
        next = Argmax(mine);
        if (p.top_width > 0) {
          report.max_logprob_error =
              std::max(report.max_logprob_error, LogprobError(mine, p, first + t));
        }
        if (at == p.positions.size() || p.positions[at] != first + t) continue;
        const auto theirs = std::span(p.logits).subspan(at++ * vocab(), vocab());
        double difference_here = 0, norm_here = 0;
        for (size_t i = 0; i < vocab(); ++i) {
          difference_here += std::pow(double{mine[i]} - theirs[i], 2);
          norm_here += std::pow(double{theirs[i]}, 2);
        }
        report.position_errors.push_back(std::sqrt(difference_here / norm_here));
        difference += difference_here;
        norm += norm_here;
      }
    });
    CHECK(at == p.positions.size());
    report.relative_errors.push_back(std::sqrt(difference / norm));
    return next;
  }

  // Decodes one token at a time, each after the reference's own, so that one slip is one slip.
  void Greedy(const ReferencePrompt& p, TokenId next, VerifyReport& report) {
    for (const TokenId& expected : p.greedy) {
      report.greedy_equal &= next == expected;
      ++report.greedy_tokens;
      if (&expected == &p.greedy.back()) return;
      runner_.Feed({&expected, 1}, 1, [&](int64_t, const TensorView& hidden) {
        next = Argmax(Logits(hidden, report));
      });
    }
  }

  // The MTP layer at position t sees the hidden state of t and the token at t + 1.
  void Drafts(const ReferencePrompt& p, VerifyReport& report) {
    std::vector<TokenId> sequence = p.prompt;
    sequence.insert(sequence.end(), p.greedy.begin(), p.greedy.end());
    const std::span<const TokenId> tokens(sequence);
    runner_.Restart();
    runner_.Feed(tokens.first(tokens.size() - 1), prefill_chunk_,
                 [&](int64_t first, const TensorView& hidden) {
                   const auto next = tokens.subspan(static_cast<size_t>(first) + 1,
                                                    static_cast<size_t>(hidden.dim(0)));
                   const TensorView drafted = runner_.ForwardMtp(next, hidden);
                   const std::vector<float> logits = Logits(drafted, report);
                   for (size_t t = 0; t < next.size(); ++t) {
                     const auto row = std::span(logits).subspan(t * vocab(), vocab());
                     const TokenId expected = p.draft[static_cast<size_t>(first) + t];
                     const bool equal = Argmax(row) == expected;
                     const bool near_tie = !equal && IsNearTie(row, expected);
                     report.draft_near_ties += near_tie;
                     report.drafts_equal &= equal || near_tie;
                     ++report.draft_tokens;
                   }
                 });
  }

  Model& model_;
  SequenceRunner runner_;
  int64_t prefill_chunk_;
};

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
                       .max_logit_rows = 64,
                       .max_model_len = longest,
                       .absorbed_row_limit = options.absorbed_row_limit,
                       .kv_cache = TRY(ParseKvCacheDType(options.kv_cache_dtype))},
                      /*progress=*/nullptr));

  VerifyReport report;
  report.limit = Limit(options, *model);
  report.tokens_must_match = report.limit == kExactLimit;
  Verification verification(*model, *backend.device, options.prefill_chunk);
  for (const ReferencePrompt& p : prompts) verification.Run(p, report);
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
  options->ops = "cpu";
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
    const VerifyReport report = TRY(Verify(*options));
    Print(*options, report);
    if (!report.passed()) exit_code = 1;
    return {};
  });
}

}  // namespace fathom
