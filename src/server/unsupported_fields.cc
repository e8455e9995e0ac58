#include "server/unsupported_fields.h"

#include <string>

namespace fathom {

namespace json = boost::json;

namespace {

// With what may stand there all the same, in JSON; null always may.
struct Unsupported {
  const char* key;
  const char* harmless;
};
constexpr Unsupported kUnsupported[] = {
    {"best_of", "1"},
    {"suffix", "\"\""},
    {"use_beam_search", "false"},
    {"length_penalty", "1"},
    {"logits_processors", "[]"},
    {"custom_logit_processor", "null"},
    {"thinking_token_budget", "null"},
    {"repetition_detection", "null"},
    {"stop_regex", "null"},
    {"separate_reasoning", "true"},
    {"kv_transfer_params", "null"},
    {"return_prompt_text", "false"},
    {"return_hidden_states", "false"},
    // Constrained output, beyond structured_fields.h.
    {"guided_decoding_backend", "null"},
    {"guided_whitespace_pattern", "null"},
    {"structural_tag", "null"},
    {"grammar", "null"},
    // What is no text, or comes from elsewhere.
    {"prompt_embeds", "null"},
    {"audio", "null"},
    {"modalities", "[\"text\"]"},
    {"web_search_options", "null"},
    {"chat_template", "null"},
    {"documents", "[]"},
};

bool Equal(const json::value& a, const json::value& b) {
  if (a.is_number() && b.is_number()) return a.to_number<double>() == b.to_number<double>();
  return a == b;
}

}  // namespace

void RefuseUnsupported(RequestFields& fields) {
  for (const auto& [key, harmless] : kUnsupported) {
    const json::value* value = fields.Find(key);
    if (value == nullptr) continue;
    const json::value allowed = json::parse(harmless);
    if (Equal(*value, allowed)) continue;
    fields.Fail(key, fmt::format("{} is not supported{}", key,
                                 allowed.is_null() ? std::string(": leave it out")
                                                   : fmt::format("; it may only be {}", harmless)));
  }
}

}  // namespace fathom
