#include "grammar/grammar_pace.h"

#include <bit>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "base/token_mask.h"
#include "grammar/grammar_steps.h"

namespace fathom {
namespace {

constexpr int kTriedTokens = 32;
constexpr int64_t kTriedLimits = 5;  // of a token: others wait for the thread that tries

constexpr int64_t kStartsPerToken = 32;  // an engine starts all answers of a request at once

thread_local bool limited = false;

std::optional<TokenId> Draw(std::span<const uint32_t> words, Rng& rng) {
  uint32_t allowed = 0;
  for (const uint32_t word : words) allowed += static_cast<uint32_t>(std::popcount(word));
  if (allowed == 0) return std::nullopt;
  uint32_t left = rng.Below(allowed);
  for (size_t i = 0;; ++i) {
    const auto here = static_cast<uint32_t>(std::popcount(words[i]));
    if (left >= here) {
      left -= here;
      continue;
    }
    uint32_t word = words[i];
    for (; left > 0; --left) word &= word - 1;
    return TokenId{static_cast<int32_t>(32 * i) + std::countr_zero(word)};
  }
}

}  // namespace

__thread int64_t steps_to_look = 0;

// 20 ms of a core with 129,280 tokens, 6 with 4096. What clients send takes less of it
// (docs/structured-output.md).
int64_t MostSteps(int32_t vocab) {
  return 1'500'000 + int64_t{32} * vocab;
}

PaceLimit::PaceLimit(int64_t steps) : steps_(steps) {
  CHECK(!limited, "a limit within another");
  limited = true;
  steps_to_look = steps;
}

PaceLimit::~PaceLimit() {
  limited = false;
  steps_to_look = 0;
}

int64_t PaceLimit::taken() const {
  return steps_ - steps_to_look;
}

Status PaceLimit::Check() {
  return limited && steps_to_look < 0 ? TooSlow() : Status();
}

Status TooSlow() {
  return InvalidArgument("the grammar takes too long for a token, and others wait: simplify it");
}

Result<std::vector<uint32_t>> TryPace(const Grammar& grammar, int32_t vocab) {
  const int64_t most = MostSteps(vocab);
  int64_t taken = 0;
  const auto in_pace = [&](int64_t steps, const auto& work) -> Status {
    const PaceLimit limit(steps);
    const Status status = work();
    taken += limit.taken();
    TRY(PaceLimit::Check());
    return status;
  };
  std::unique_ptr<GrammarState> state;
  std::vector<uint32_t> words(static_cast<size_t>(MaskWords(vocab)));
  TRY(in_pace(most / kStartsPerToken, [&]() -> Status {
    state = TRY(grammar.Start());
    return {};
  }));
  TRY(in_pace(most, [&]() -> Status {
    if (state->FillMask(words).ok()) return {};
    return InvalidArgument("no token of the vocabulary can begin an answer");
  }));
  const std::vector<uint32_t> first = words;
  Rng rng(/*seed=*/0);
  bool goes_on = true;
  for (int i = 0; i < kTriedTokens && goes_on && taken < kTriedLimits * most; ++i) {
    const std::optional<TokenId> token = Draw(words, rng);
    if (!token) break;
    TRY(in_pace(most, [&]() -> Status {
      // What fails otherwise may come in no answer, and ends the one that it comes in.
      const Result<bool> accepted = state->Accept(*token);
      goes_on = accepted.ok() && *accepted && !state->terminated() && state->FillMask(words).ok();
      return {};
    }));
  }
  return first;
}

}  // namespace fathom
