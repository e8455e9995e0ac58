#include "server/unsupported_fields.h"

#include <algorithm>
#include <string>

namespace fathom {

namespace json = boost::json;

namespace {

constexpr UnsupportedField kUnsupported[] = {
    {"best_of", "[1]"},
    {"suffix", R"([""])"},
    {"use_beam_search", "[false]"},
    {"length_penalty", "[1]"},
    {"watermarking", "[false]"},
    {"logits_processors", "[]"},
    {"custom_logit_processor", "[]"},
    {"custom_params", "[]"},
    {"vllm_xargs", "[]"},
    {"thinking_token_budget", "[]"},
    {"verbosity", R"(["medium"])"},
    {"repetition_detection", "[]"},
    {"stop_regex", "[]"},
    {"no_stop_trim", "[false]", "say include_stop_str_in_output"},
    {"separate_reasoning", "[true]"},
    {"stream_reasoning", "[true]"},
    {"kv_transfer_params", "[]"},
    {"ec_transfer_params", "[]"},
    {"return_prompt_text", "[false]"},
    {"return_prompt_token_ids", "[false]", "say return_token_ids"},
    {"return_hidden_states", "[false]"},
    {"return_routed_experts", "[false]"},
    {"return_meta_info", "[false]"},
    {"lora_path", R"([""])"},
    {"session_params", "[]"},
    // Constrained output, beyond structured_fields.h.
    {"guided_decoding_backend", R"(["auto", "xgrammar"])"},
    {"guided_whitespace_pattern", "[]"},
    {"structural_tag", "[]", "say structured_outputs.structural_tag"},
    {"grammar", "[]"},
    // What is no text, or comes from elsewhere.
    {"prompt_embeds", "[]"},
    {"input_ids", "[]"},
    {"audio", "[]"},
    {"modalities", R"([["text"]])"},
    {"mm_processor_kwargs", "[]"},
    {"media_io_kwargs", "[]"},
    {"web_search_options", "[null]", "this server searches nothing; leave it out"},  // {}: search
    {"chat_template", "[]"},
    {"documents", "[[]]"},
};

bool Equal(const json::value& a, const json::value& b) {
  if (a.is_number() && b.is_number()) return a.to_number<double>() == b.to_number<double>();
  return a == b;
}

bool IsEmpty(const json::value& value) {
  return (value.is_object() && value.get_object().empty()) ||
         (value.is_array() && value.get_array().empty());
}

std::string Advice(const UnsupportedField& field, const json::array& harmless) {
  if (*field.instead != '\0') return fmt::format(": {}", field.instead);
  if (harmless.empty()) return ": leave it out";
  std::string all;
  for (const json::value& one : harmless) {
    all.append(all.empty() ? "" : " or ").append(json::serialize(one));
  }
  return fmt::format("; it may only be {}", all);
}

}  // namespace

void RefuseFields(RequestFields& fields, std::span<const UnsupportedField> unsupported) {
  for (const UnsupportedField& field : unsupported) {
    const json::value* value = fields.Find(field.key);
    if (value == nullptr) continue;
    const json::array harmless = json::parse(field.harmless).get_array();
    if (harmless.empty() && IsEmpty(*value)) continue;
    if (std::ranges::any_of(harmless, [&](const json::value& h) { return Equal(*value, h); })) {
      continue;
    }
    fields.Fail(field.key, fmt::format("{} is not supported{}", fields.Name(field.key),
                                       Advice(field, harmless)));
  }
}

void RefuseUnsupported(RequestFields& fields) {
  RefuseFields(fields, kUnsupported);
}

}  // namespace fathom
