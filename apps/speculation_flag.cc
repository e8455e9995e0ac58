#include "speculation_flag.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <optional>

namespace fathom {
namespace {

namespace json = boost::json;

constexpr int32_t kDefaultLookup = 5;

Result<int32_t> Whole(std::string_view key, const json::value& value) {
  if (!value.is_int64() || value.get_int64() != static_cast<int32_t>(value.get_int64())) {
    return InvalidArgument("{} must be a whole number", key);
  }
  return static_cast<int32_t>(value.get_int64());
}

Status Fill(const json::object& given, Speculation* speculation) {
  std::optional<int32_t> least, most;
  for (const auto& [key, value] : given) {
    if (key == "method") {
      if (!value.is_string()) return InvalidArgument("method must be a text");
      speculation->method = TRY(ParseSpeculationMethod(std::string_view(value.get_string())));
      continue;
    }
    if (key == "num_speculative_tokens") {
      speculation->num_tokens = TRY(Whole(key, value));
    } else if (key == "prompt_lookup_min") {
      least = TRY(Whole(key, value));
    } else if (key == "prompt_lookup_max") {
      most = TRY(Whole(key, value));
    } else {
      return InvalidArgument(
          "{} is not known: there are method, num_speculative_tokens, prompt_lookup_min and "
          "prompt_lookup_max",
          std::string_view(key));
    }
  }
  if (speculation->method == Speculation::Method::kNone) {
    return InvalidArgument("method is missing: fathom has \"mtp\" and \"ngram\"");
  }
  if (speculation->method == Speculation::Method::kMtp && (least || most)) {
    return InvalidArgument("prompt_lookup_min and prompt_lookup_max are for method \"ngram\"");
  }
  if (speculation->num_tokens == 0 && !given.contains("num_speculative_tokens")) {
    speculation->num_tokens = Speculation::kAdaptsUpTo;
    speculation->adapts = true;
  }
  speculation->lookup_min = least.value_or(most.value_or(kDefaultLookup));
  speculation->lookup_max = most.value_or(speculation->lookup_min);
  return speculation->Check();
}

}  // namespace

Result<Speculation> ParseSpeculation(const std::string& text) {
  Speculation speculation;
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  if (error || !value.is_object()) {
    return InvalidArgument(
        "--speculative-config is not a JSON object as '{{\"method\": \"ngram\", "
        "\"num_speculative_tokens\": 4}}': {}",
        text);
  }
  const Status status = Fill(value.get_object(), &speculation);
  if (!status.ok()) return status.WithContext("--speculative-config");
  return speculation;
}

}  // namespace fathom
