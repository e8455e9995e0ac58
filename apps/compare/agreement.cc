#include "agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/printable.h"

namespace fathom {
namespace {

std::optional<float> LogprobOf(const TokenLogprobs& at, TokenId id) {
  for (const auto& [listed, logprob] : at.top) {
    if (listed == id) return logprob;
  }
  return std::nullopt;
}

// By how much a side prefers its own token to the other's.
std::optional<double> Gap(const GeneratedToken& own, TokenId other) {
  if (!own.logprobs) return std::nullopt;
  const std::optional<float> behind = LogprobOf(*own.logprobs, other);
  if (!behind) return std::nullopt;
  return static_cast<double>(own.logprobs->logprob) - static_cast<double>(*behind);
}

// p log(p / q), of probabilities that may have been rounded below 0.
double Term(double p, double q) {
  constexpr double kLeast = 1e-12;
  return p <= kLeast ? 0 : p * std::log(p / std::max(q, kLeast));
}

}  // namespace

void Spread::Add(double a, double b) {
  values.push_back(std::abs(a - b));
}

double Spread::mean() const {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double Spread::p99() const {
  if (values.empty()) return 0;
  std::vector<double> sorted = values;
  const size_t at = (sorted.size() - 1) * 99 / 100;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(at), sorted.end());
  return sorted[at];
}

double Spread::max() const {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

bool Parting::IsTie(const AgreementLimits& limits) const {
  if (!our_gap) return false;
  return *our_gap + std::abs(their_gap.value_or(0)) <= limits.tie;
}

std::optional<double> CoarseDivergence(const TokenLogprobs& theirs, const TokenLogprobs& ours) {
  double rest_p = 1, rest_q = 1, sum = 0;
  bool any = false;
  for (const auto& [id, logprob] : theirs.top) {
    const std::optional<float> other = LogprobOf(ours, id);
    if (!other) continue;
    any = true;
    const double p = std::exp(static_cast<double>(logprob));
    const double q = std::exp(static_cast<double>(*other));
    sum += Term(p, q);
    rest_p -= p;
    rest_q -= q;
  }
  if (!any) return std::nullopt;
  return std::max(sum + Term(rest_p, rest_q), 0.0);
}

void Agreement::Add(const Agreement& other) {
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(prompt.values, other.prompt.values);
  append(generated.values, other.generated.values);
  append(divergence.values, other.divergence.values);
  append(partings, other.partings);
  tokens += other.tokens;
  equal_tokens += other.equal_tokens;
  answers += other.answers;
  equal_answers += other.equal_answers;
}

Agreement Compare(const Exchanged& exchanged, size_t prompt_index) {
  const Answer &theirs = exchanged.theirs, &ours = exchanged.ours;
  CHECK(theirs.tokens.size() == ours.tokens.size());
  Agreement result;
  const auto diverge = [&](const TokenLogprobs& a, const TokenLogprobs& b) {
    if (const auto divergence = CoarseDivergence(a, b)) result.divergence.Add(*divergence, 0);
  };
  for (size_t i = 0; i < std::min(theirs.prompt.size(), ours.prompt.size()); ++i) {
    result.prompt.Add(theirs.prompt[i].logprob, ours.prompt[i].logprob);
    diverge(theirs.prompt[i], ours.prompt[i]);
  }
  for (size_t i = 0; i < theirs.tokens.size(); ++i) {
    const GeneratedToken &their = theirs.tokens[i], &our = ours.tokens[i];
    const bool equal = their.id == our.id;
    ++result.tokens;
    result.equal_tokens += equal;
    if (!equal) {
      result.partings.push_back({.prompt = prompt_index,
                                 .position = i,
                                 .ours = our.id,
                                 .theirs = their.id,
                                 .our_gap = Gap(our, their.id),
                                 .their_gap = Gap(their, our.id)});
    }
    if (!their.logprobs || !our.logprobs) continue;
    const std::optional<float> same =
        equal ? our.logprobs->logprob : LogprobOf(*our.logprobs, their.id);
    if (same) result.generated.Add(their.logprobs->logprob, *same);
    diverge(*their.logprobs, *our.logprobs);
  }
  result.answers = 1;
  result.equal_answers = result.partings.empty();
  return result;
}

void Repeats::Add(std::span<const GeneratedToken> first, std::span<const GeneratedToken> second) {
  const size_t shared = std::min(first.size(), second.size());
  size_t i = 0;
  for (; i < shared && first[i].id == second[i].id; ++i) {
    if (!first[i].logprobs || !second[i].logprobs) continue;
    generated.Add(first[i].logprobs->logprob, second[i].logprobs->logprob);
  }
  ++answers;
  equal_answers += i == first.size() && i == second.size();
}

Judgement Judge(const Agreement& all, const AgreementLimits& limits) {
  if (all.tokens == 0) return {Verdict::kUnknown, "the server generated no token"};
  const auto faults = std::count_if(all.partings.begin(), all.partings.end(),
                                    [&](const Parting& p) { return !p.IsTie(limits); });
  if (all.generated.values.empty() && all.prompt.values.empty()) {
    if (faults == 0) {
      return {Verdict::kUnknown,
              "the server gives no log-probabilities, so that only greedy tokens were compared; "
              "none of them is other than by a tie of numbers"};
    }
    return {Verdict::kDiffer,
            fmt::format("{} other than by a tie of numbers", Counted(faults, "greedy token"))};
  }
  // Unlikely tokens, of which prompts are full, differ by more than those that matter; divergence
  // weighs them by how likely they are.
  const bool weighed = !all.divergence.values.empty();
  const double mean =
      weighed ? all.generated.mean() : std::max(all.generated.mean(), all.prompt.mean());
  const std::string divergence = weighed ? fmt::format(", distributions by {:.4f} (limit {})",
                                                       all.divergence.mean(), limits.divergence)
                                         : "";
  const bool agree =
      mean <= limits.mean && faults == 0 && all.divergence.mean() <= limits.divergence;
  return {agree ? Verdict::kAgree : Verdict::kDiffer,
          fmt::format("log-probabilities differ by {:.4f} on average (limit {}){}, and of {} {} "
                      "other than by a tie of numbers",
                      mean, limits.mean, divergence, Counted(all.tokens, "greedy token"),
                      faults == 0   ? "none is"
                      : faults == 1 ? "1 is"
                                    : fmt::format("{} are", faults))};
}

}  // namespace fathom
