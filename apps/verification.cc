#include "verification.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <memory>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace fathom {
namespace {

double UpperMedian(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

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

// Whether `token` trails the greatest logit by less than kExactLimit times the logits' root mean
// square: two implementations that are each right to that may then choose differently.
bool IsNearTie(std::span<const float> logits, TokenId token) {
  double squares = 0;
  for (float x : logits) squares += double{x} * x;
  const double gap =
      *std::max_element(logits.begin(), logits.end()) - logits[static_cast<size_t>(Raw(token))];
  return gap < kExactLimit * std::sqrt(squares / static_cast<double>(logits.size()));
}

// With a vector of logits for each of the expected drafts.
void CompareDrafts(std::span<const TokenId> expected, std::span<const float> logits,
                   VerifyReport& report) {
  const size_t vocab = logits.size() / expected.size();
  for (size_t t = 0; t < expected.size(); ++t) {
    const auto vector = logits.subspan(t * vocab, vocab);
    const bool equal = Argmax(vector) == expected[t];
    const bool near_tie = !equal && IsNearTie(vector, expected[t]);
    report.draft_near_ties += near_tie;
    report.drafts_equal &= equal || near_tie;
    ++report.draft_tokens;
  }
}

}  // namespace

double VerifyReport::max_error() const {
  return *std::max_element(relative_errors.begin(), relative_errors.end());
}

double VerifyReport::median_error() const {
  return UpperMedian(relative_errors);
}

double VerifyReport::median_position_error() const {
  return UpperMedian(position_errors);
}

double VerifyReport::positions_beyond_limit() const {
  const auto beyond = std::count_if(position_errors.begin(), position_errors.end(),
                                    [&](double error) { return !(error <= limit); });
  return static_cast<double>(beyond) / static_cast<double>(position_errors.size());
}

bool VerifyReport::passed() const {  // written so that NaN fails
  return ranks_agree && max_error() <= limit &&
         (!tokens_must_match || (greedy_equal && drafts_equal));
}

Verification::Verification(Model& model, Device& device, int64_t prefill_chunk,
                           std::optional<AttentionForm> forced_form)
    : model_(model),
      device_(device),
      vocab_(static_cast<size_t>(model.config().vocab_size)),
      num_pages_(static_cast<int32_t>((model.options().max_model_len - 1) / kPageTokens + 1)),
      runner_(model, device, {.num_pages = num_pages_, .slots = 1}),
      prefill_chunk_(static_cast<size_t>(prefill_chunk)),
      forced_form_(forced_form) {}

void Verification::Run(const ReferencePrompt& p, StepWatch& watch, VerifyReport& report) {
  watch_ = &watch;
  OneRequest request = Request(p.prompt, p.greedy.size());
  const TokenId next = Prefill(p, request, report);
  Greedy(p, next, request, report);
  if (!p.draft.empty()) Drafts(p, report);
}

OneRequest Verification::Request(std::span<const TokenId> prompt, size_t max_tokens) const {
  RequestParams params;
  params.prompt = {prompt.begin(), prompt.end()};
  params.max_tokens = static_cast<int32_t>(std::max<size_t>(max_tokens, 1));
  return {std::make_shared<const RequestParams>(std::move(params)), num_pages_};
}

AttentionForm Verification::FormOfNext(const OneRequest& request) const {
  if (forced_form_) return *forced_form_;
  return FormOfToken(request.length(), static_cast<int64_t>(request.params().prompt.size()),
                     static_cast<int64_t>(prefill_chunk_), model_.options().absorbed_limit);
}

template <class Visit>
void Verification::Feed(OneRequest& request, std::span<const TokenId> tokens, const Visit& visit) {
  while (!tokens.empty()) {
    const auto row = tokens.first(std::min(tokens.size(), prefill_chunk_));
    const StepPlan plan = request.Next(FormOfNext(request), row);
    watch_->Begin(StepText(plan.step, 1, plan.num_tokens()));
    runner_.Begin(plan);
    const StagedStep& step = runner_.Stage(plan);
    const TensorView hidden = runner_.Forward(step);
    runner_.HandOn(step);
    runner_.SampleAndCommit(step, hidden);
    visit(plan, hidden);
    watch_->End();
    tokens = tokens.subspan(row.size());
  }
}

std::vector<float> Verification::Logits(const TensorView& hidden, VerifyReport& report) {
  const auto count = static_cast<size_t>(hidden.dim(0));
  std::vector<float> logits(count * vocab_);
  if (!runner_.draws()) return logits;  // nor is what it would be compared with of use
  std::vector<int32_t> index(count);
  std::iota(index.begin(), index.end(), 0);
  const auto pass_vectors = static_cast<size_t>(runner_.pass_vectors());
  for (size_t at = 0; at < count; at += pass_vectors) {
    const size_t vectors = std::min(pass_vectors, count - at);
    const auto to = std::span(logits).subspan(at * vocab_, vectors * vocab_);
    device_.Download(std::as_writable_bytes(to),
                     runner_.Logits(hidden, std::span(index).subspan(at, vectors)));
  }
  device_.stream().Synchronize();
  for (float x : logits) {
    report.logits_hash = (report.logits_hash ^ std::bit_cast<uint32_t>(x)) * 0x100000001b3;
  }
  return logits;
}

TokenId Verification::Prefill(const ReferencePrompt& p, OneRequest& request, VerifyReport& report) {
  double difference = 0, norm = 0;
  size_t at = 0;
  TokenId next{};
  Feed(request, p.prompt, [&](const StepPlan& plan, const TensorView& hidden) {
    const std::vector<float> logits = Logits(hidden, report);
    for (int64_t t = 0; t < hidden.dim(0); ++t) {
      const int64_t position = plan.rows[0].begin + t;
      const auto mine = std::span(logits).subspan(static_cast<size_t>(t) * vocab_, vocab_);
      next = Argmax(mine);
      if (p.top_width > 0) {
        report.max_logprob_error =
            std::max(report.max_logprob_error, LogprobError(mine, p, position));
      }
      if (at == p.positions.size() || p.positions[at] != position) continue;
      const auto theirs = std::span(p.logits).subspan(at++ * vocab_, vocab_);
      double difference_here = 0, norm_here = 0;
      for (size_t i = 0; i < vocab_; ++i) {
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

void Verification::Greedy(const ReferencePrompt& p, TokenId next, OneRequest& request,
                          VerifyReport& report) {
  for (const TokenId& expected : p.greedy) {
    report.greedy_equal &= next == expected;
    ++report.greedy_tokens;
    if (&expected == &p.greedy.back()) return;
    Feed(request, {&expected, 1},
         [&](const StepPlan&, const TensorView& hidden) { next = Argmax(Logits(hidden, report)); });
  }
}

void Verification::Drafts(const ReferencePrompt& p, VerifyReport& report) {
  std::vector<TokenId> tokens = p.prompt;
  tokens.insert(tokens.end(), p.greedy.begin(), p.greedy.end());
  const auto known = std::span(tokens).first(tokens.size() - 1);  // the prompt, to the model
  OneRequest request = Request(known, 1);
  Feed(request, known, [&](StepPlan plan, const TensorView& hidden) {
    // The same row again, with the ids of its successors.
    StepRow& row = plan.rows[0];
    const auto next = tokens.begin() + row.begin + 1;
    row.tokens.assign(next, next + row.num_tokens());
    const TensorView drafted = runner_.ForwardMtp(0, runner_.Stage(plan), hidden);
    CompareDrafts(std::span(p.draft).subspan(static_cast<size_t>(row.begin), row.tokens.size()),
                  Logits(drafted, report), report);
  });
}

}  // namespace fathom
