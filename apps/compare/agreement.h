// How far two implementations of a model agree: log-probabilities of the same tokens, and whether
// the same token is the likeliest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "engine/messages.h"
#include "reply.h"

namespace fathom {

// Rounding differs from engine to engine, and from format to format; faults are of another size
// (docs/compare.md).
struct AgreementLimits {
  double mean = 0.1;         // of |difference| of answers' log-probabilities, on average
  double divergence = 0.02;  // of Agreement::divergence, on average
  double tie = 0.5;          // of both gaps of a tie, added up
};

// What one prompt brought from both sides. Ours are computed behind the server's own tokens, so
// that one slip is one slip.
struct Exchanged {
  Answer theirs;
  Answer ours;  // as many tokens as theirs, each the likeliest behind theirs before it
};

// Of |difference|.
struct Spread {
  std::vector<double> values;
  void Add(double a, double b);
  double mean() const;  // 0 without values, as below
  double p99() const;
  double max() const;
};

// A position at which the likeliest tokens differ. A gap is by how much each side prefers its own
// to the other's; nothing if it does not list the other's. A server whose gap is negative did not
// take its likeliest.
struct Parting {
  size_t prompt = 0, position = 0;
  TokenId ours{}, theirs{};
  std::optional<double> our_gap, their_gap;

  // Whether numbers as near as these may fall either way.
  bool IsTie(const AgreementLimits& limits) const;
};

// Of one prompt, or of all.
struct Agreement {
  Spread prompt, generated;
  Spread divergence;  // of distributions over the likeliest tokens: CoarseDivergence
  int64_t tokens = 0, equal_tokens = 0;
  int64_t answers = 0, equal_answers = 0;
  std::vector<Parting> partings;

  void Add(const Agreement& other);
};

Agreement Compare(const Exchanged& exchanged, size_t prompt_index);

// Kullback-Leibler divergence of ours from theirs, of what both list and of all the rest as one
// outcome: what the whole vocabulary would give is this or more. Nothing where both list nothing.
std::optional<double> CoarseDivergence(const TokenLogprobs& theirs, const TokenLogprobs& ours);

// A server's answers to the same question twice: what it differs from itself by.
struct Repeats {
  int64_t answers = 0, equal_answers = 0;
  Spread generated;  // up to where the two answers part

  void Add(std::span<const GeneratedToken> first, std::span<const GeneratedToken> second);
};

enum class Verdict { kAgree, kDiffer, kUnknown };
struct Judgement {
  Verdict verdict = Verdict::kUnknown;
  std::string why;  // a sentence
};
Judgement Judge(const Agreement& all, const AgreementLimits& limits);

}  // namespace fathom
