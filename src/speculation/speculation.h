// Who proposes drafts, and how many. Host policy: proposing is an op (ops/drafts.h).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace fathom {

struct Speculation {
  enum class Method : uint8_t { kNone, kNgram, kMtp };

  // Bounds of what can be asked for.
  static constexpr int32_t kMostTokens = 15, kMostLookup = 32;
  static constexpr int32_t kAdaptsUpTo = 3;  // if nobody says how many

  Method method = Method::kNone;
  int32_t num_tokens = 0;                  // drafts of a decode at most; 0 without a method
  bool adapts = false;                     // fewer where they bring nothing (draft_depth.h)
  int32_t lookup_min = 0, lookup_max = 0;  // of n-grams: tokens that match

  // If nobody says anything else: a model that has one MTP layer proposes, as deep as it pays.
  static Speculation Default(int mtp_layers);

  // kInvalidArgument, naming the key of --speculative-config, for what is out of bounds.
  Status Check() const;
  // Positions behind what is drawn that a draft layer computes for its later drafts.
  int32_t lookahead() const { return method == Method::kMtp ? num_tokens - 1 : 0; }
};

// "ngram" or "mtp"; kUnimplemented for methods that other engines have.
Result<Speculation::Method> ParseSpeculationMethod(std::string_view name);

}  // namespace fathom
