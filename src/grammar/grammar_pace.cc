#include "grammar/grammar_pace.h"

#include <bit>
#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "base/token_mask.h"

namespace fathom {
namespace {

constexpr int64_t kMostMs = 20, kOtherRowsMs = 5, kMsNs = 1'000'000;
constexpr int kTriedTokens = 32;
constexpr int64_t kTriedMs = 100;  // others wait for the thread that tries

thread_local std::optional<int64_t> pace_end_ns;

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

int64_t ThreadNs() {
  timespec now{};
  CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

int64_t PaceNs(int64_t longest, int64_t others) {
  return (kMostMs * longest + kOtherRowsMs * others) * kMsNs;
}

PaceLimit::PaceLimit(int64_t ns) {
  CHECK(!pace_end_ns, "a limit within another");
  pace_end_ns = ThreadNs() + ns;
}

PaceLimit::~PaceLimit() {
  pace_end_ns.reset();
}

Status PaceLimit::Check() {
  return pace_end_ns && ThreadNs() > *pace_end_ns ? TooSlow() : Status();
}

Status TooSlow() {
  return InvalidArgument(
      "the grammar takes more than {} ms for a token, or {} for one of many answers: simplify it, "
      "or ask for fewer at a time",
      kMostMs, kOtherRowsMs);
}

namespace {

// How `work`, with a state, ended; TooSlow() if it took longer than a token may.
template <typename Work>
Status InTime(const Work& work) {
  const int64_t begin_ns = ThreadNs();
  const PaceLimit limit(PaceNs(1, 0));
  Status status = work();
  return ThreadNs() - begin_ns > PaceNs(1, 0) ? TooSlow() : status;
}

Status TryOnce(const Grammar& grammar, int32_t vocab) {
  Rng rng(/*seed=*/0);
  std::vector<uint32_t> words(static_cast<size_t>(MaskWords(vocab)));
  const int64_t end_ns = ThreadNs() + kTriedMs * kMsNs;
  const std::unique_ptr<GrammarState> state = TRY(grammar.Start());
  TRY(InTime([&]() -> Status {
    if (state->FillMask(words).ok()) return {};
    return InvalidArgument("no token of the vocabulary can begin an answer");
  }));
  bool goes_on = true;
  for (int i = 0; i < kTriedTokens && goes_on && ThreadNs() < end_ns; ++i) {
    const std::optional<TokenId> token = Draw(words, rng);
    if (!token) return {};
    TRY(InTime([&]() -> Status {
      // What fails otherwise may come in no answer, and ends the one that it comes in.
      const Result<bool> taken = state->Accept(*token);
      goes_on = taken.ok() && *taken && !state->terminated() && state->FillMask(words).ok();
      return {};
    }));
  }
  return {};
}

}  // namespace

Status TryPace(const Grammar& grammar, int32_t vocab) {
  const Status first = TryOnce(grammar, vocab);
  return first.ok() ? first : TryOnce(grammar, vocab);
}

}  // namespace fathom
