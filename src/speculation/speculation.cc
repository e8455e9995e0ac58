#include "speculation/speculation.h"

namespace fathom {

Speculation Speculation::Default(int mtp_layers) {
  if (mtp_layers != 1) return {};
  return {.method = Method::kMtp, .num_tokens = kAdaptsUpTo, .adapts = true};
}

Status Speculation::Check() const {
  if (method == Method::kNone) return {};
  if (num_tokens < 1 || num_tokens > kMostTokens) {
    return InvalidArgument("num_speculative_tokens is {}: it must be between 1 and {}", num_tokens,
                           kMostTokens);
  }
  if (method == Method::kMtp) return {};
  if (lookup_min < 1 || lookup_max > kMostLookup || lookup_min > lookup_max) {
    return InvalidArgument(
        "prompt_lookup_min is {} and prompt_lookup_max {}: they must be between 1 and {}, the "
        "first not above the second",
        lookup_min, lookup_max, kMostLookup);
  }
  return {};
}

Result<Speculation::Method> ParseSpeculationMethod(std::string_view name) {
  if (name == "ngram") return Speculation::Method::kNgram;
  if (name == "mtp") return Speculation::Method::kMtp;
  return Unimplemented("method \"{}\": fathom has \"mtp\" and \"ngram\"", name);
}

}  // namespace fathom
