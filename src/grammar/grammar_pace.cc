#include "grammar/grammar_pace.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "base/thread_bytes.h"
#include "base/token_mask.h"
#include "grammar/grammar_steps.h"

namespace fathom {
namespace {

constexpr int kTriedTokens = 32;
constexpr int64_t kTriedTimes = 2;  // what a first token may: others wait for the thread that tries

constexpr int64_t kStartSteps = 50'000;  // an engine starts all answers of a request at once

constexpr int64_t kOften = 16'384;  // some 50 us, and what they may take is little beside a limit

thread_local PaceLimit* limit = nullptr;

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

// Some 4 ns each. With 129,280 tokens 40 ms of a core, and 240 in reserve; with 4096 7 and 7.
AnswerPace::AnswerPace(int32_t vocab)
    : each_(1'500'000 + int64_t{70} * vocab), most_reserve_(int64_t{450} * vocab) {}

void AnswerPace::Took(int64_t tokens, int64_t steps) {
  reserve_ = std::clamp(May(tokens) - steps, int64_t{0}, most_reserve_);
}

PaceLimit::PaceLimit(int64_t steps, size_t bytes)
    : steps_(steps),
      bytes_(bytes),
      end_bytes_(ThreadBytes() + static_cast<int64_t>(bytes)),
      left_(steps) {
  CHECK(limit == nullptr, "a limit within another");
  limit = this;
  steps_to_look = std::min(left_, kOften);
  left_ -= steps_to_look;
}

PaceLimit::~PaceLimit() {
  limit = nullptr;
  steps_to_look = 0;
}

int64_t PaceLimit::taken() const {
  return steps_ - left_ - steps_to_look;
}

Status PaceLimit::Check() {
  return limit == nullptr ? Status() : limit->Look();
}

Status PaceLimit::Look() {
  left_ += steps_to_look;
  steps_to_look = std::min(left_, kOften);
  left_ -= steps_to_look;
  too_large_ |= ThreadBytes() > end_bytes_;
  if (too_large_) {
    return InvalidArgument("the grammar takes more than {} MiB for a token: simplify it",
                           bytes_ >> 20);
  }
  if (steps_to_look >= 0) return {};
  return InvalidArgument("the grammar takes too long for a token, and others wait: simplify it");
}

Status NothingMayFollow() {
  return InvalidArgument(
      "there are answers behind which no token can go on: a rule without an end begins there, or "
      "characters that no token writes");
}

Result<std::vector<uint32_t>> TryPace(const Grammar& grammar, int32_t vocab) {
  AnswerPace pace(vocab);
  const int64_t most_taken = kTriedTimes * pace.May(1);
  int64_t taken = 0;
  const auto in_pace = [&](int64_t steps, const auto& work) -> Status {
    const PaceLimit limit(steps);
    const Status status = work();
    taken += limit.taken();
    pace.Took(1, limit.taken());
    TRY(PaceLimit::Check());
    return status;
  };
  std::unique_ptr<GrammarState> state;
  std::vector<uint32_t> words(static_cast<size_t>(MaskWords(vocab)));
  TRY(in_pace(kStartSteps, [&]() -> Status {
    state = TRY(grammar.Start());
    return {};
  }));
  TRY(in_pace(pace.May(1), [&]() -> Status {
    Status filled = state->FillMask(words);
    if (filled.code() != StatusCode::kNotFound) return filled;
    return InvalidArgument(
        "no token of the vocabulary can begin an answer: a rule without an end begins it, or "
        "characters that no token writes");
  }));
  const std::vector<uint32_t> first = words;
  Rng rng(/*seed=*/0);
  bool goes_on = true;
  for (int i = 0; i < kTriedTokens && goes_on && taken < most_taken; ++i) {
    const std::optional<TokenId> token = Draw(words, rng);
    if (!token) break;
    TRY(in_pace(pace.May(1), [&]() -> Status {
      const Result<bool> accepted = state->Accept(*token);
      goes_on = accepted.ok() && *accepted && !state->terminated();
      const Status filled = goes_on ? state->FillMask(words) : Status();
      if (filled.code() == StatusCode::kNotFound) return NothingMayFollow();
      // What fails otherwise may come in no answer, and ends the one that it comes in.
      goes_on = goes_on && filled.ok();
      return {};
    }));
  }
  return first;
}

}  // namespace fathom
