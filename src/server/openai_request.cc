#include "server/openai_request.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "server/chat_messages.h"
#include "server/json_fields.h"

namespace fathom {

namespace json = boost::json;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// Fields that would change the answer if they were served, with what may stand there anyway.
struct Unsupported {
  const char* key;
  const char* harmless;  // JSON; "null" is always harmless
};
constexpr Unsupported kUnsupported[] = {
    {"best_of", "1"},
    {"suffix", "\"\""},
    {"use_beam_search", "false"},
    {"prompt_logprobs", "0"},
    {"logits_processors", "[]"},
    {"allowed_token_ids", "null"},
    {"return_token_ids", "false"},
    {"bad_words", "[]"},
    {"truncate_prompt_tokens", "null"},
    {"length_penalty", "1"},
    {"guided_json", "null"},
    {"guided_regex", "null"},
    {"guided_choice", "null"},
    {"guided_grammar", "null"},
    {"structured_outputs", "null"},
    {"structural_tag", "null"},
    {"prompt_embeds", "null"},
    {"audio", "null"},
    {"modalities", "[\"text\"]"},
    {"web_search_options", "null"},
    {"chat_template", "null"},
    {"continue_final_message", "false"},
    {"documents", "null"},
};

void RefuseUnsupported(RequestFields& fields) {
  for (const auto& [key, harmless] : kUnsupported) {
    const json::value* value = fields.Find(key);
    if (value == nullptr) continue;
    const json::value allowed = json::parse(harmless);
    const bool equal = value->is_number() && allowed.is_number()
                           ? value->to_number<double>() == allowed.to_number<double>()
                           : *value == allowed;
    if (!equal) {
      fields.Fail(key,
                  fmt::format("{} is not supported{}", key,
                              allowed.is_null() ? std::string(": leave it out")
                                                : fmt::format("; it may only be {}", harmless)));
    }
  }
  const json::object* format = fields.Object("response_format");
  if (format == nullptr) return;
  const json::value* type = format->if_contains("type");
  if (type == nullptr || *type != json::value("text")) {
    fields.Fail("response_format",
                "response_format is not supported beyond {\"type\": \"text\"}: output cannot be "
                "constrained to a grammar yet");
  }
}

TokenId CheckedToken(RequestFields& fields, const char* key, const json::value& value,
                     int32_t vocab_size) {
  const std::optional<int64_t> id = AsInteger(value);
  if (!id || *id < 0 || *id >= vocab_size) {
    fields.Fail(key, fmt::format("{} must hold token ids between 0 and {}, not {}",
                                 fields.Name(key), vocab_size - 1, Excerpt(value)));
    return TokenId{0};
  }
  return TokenId(static_cast<int32_t>(*id));
}

std::vector<TokenId> ReadTokens(RequestFields& fields, const char* key, const json::array& list,
                                int32_t vocab_size) {
  std::vector<TokenId> tokens;
  tokens.reserve(list.size());
  for (const json::value& value : list) {
    tokens.push_back(CheckedToken(fields, key, value, vocab_size));
    if (fields.failed()) break;
  }
  return tokens;
}

void ReadLogitBias(RequestFields& fields, const RequestLimits& limits, SamplingParams* sampling) {
  const json::object* bias = fields.Object("logit_bias");
  if (bias == nullptr) return;
  if (bias->size() > kMaxLogitBias) {
    fields.Fail("logit_bias", fmt::format("logit_bias has {} entries; at most {} are allowed",
                                          bias->size(), kMaxLogitBias));
    return;
  }
  for (const auto& [key, value] : *bias) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 ||
        id >= limits.vocab_size) {
      fields.Fail("logit_bias", fmt::format("the keys of logit_bias must be token ids between 0 "
                                            "and {}, not {}",
                                            limits.vocab_size - 1, Excerpt(json::value(key))));
      return;
    }
    const double amount = value.is_number() ? value.to_number<double>() : 1e9;
    if (amount < -100 || amount > 100) {
      fields.Fail("logit_bias", fmt::format("the values of logit_bias must be numbers between -100 "
                                            "and 100, not {}",
                                            Excerpt(value)));
      return;
    }
    sampling->logit_bias.emplace_back(TokenId(id), static_cast<float>(amount));
  }
}

void ReadSampling(RequestFields& fields, const RequestLimits& limits, GenerationParams* params) {
  const SamplingDefaults& defaults = limits.defaults;
  SamplingParams& sampling = params->sampling;
  sampling.temperature = fields.Number("temperature", defaults.temperature.value_or(1.0f), {0, 2});
  sampling.top_k = std::clamp<int64_t>(
      fields.Integer("top_k", defaults.top_k.value_or(0), -1, kMaxInt32), 0, limits.vocab_size);
  sampling.top_p = fields.Number("top_p", defaults.top_p.value_or(1.0f), {0, 1, true});
  sampling.min_p = fields.Number("min_p", defaults.min_p.value_or(0.0f), {0, 1});
  sampling.presence_penalty = fields.Number("presence_penalty", 0, {-2, 2});
  sampling.frequency_penalty = fields.Number("frequency_penalty", 0, {-2, 2});
  sampling.repetition_penalty =
      fields.Number("repetition_penalty", defaults.repetition_penalty.value_or(1.0f), {0.001, 10});
  ReadLogitBias(fields, limits, &sampling);
  params->seeded = fields.Find("seed") != nullptr;
  sampling.seed = static_cast<uint64_t>(fields.Integer(
      "seed", 0, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()));
}

void ReadStops(RequestFields& fields, const RequestLimits& limits, GenerationParams* params) {
  const auto add = [&](const json::value& value) {
    if (value.is_string() && value.get_string().empty()) {
      fields.Fail("stop", "stop must not hold an empty string: every text has one");
      return;
    }
    if (!value.is_string() || value.get_string().size() > kMaxStopBytes) {
      fields.Fail("stop", fmt::format("stop must be a string, or a list of strings, of 1 to {} "
                                      "bytes each",
                                      kMaxStopBytes));
      return;
    }
    params->stop.emplace_back(std::string_view(value.get_string()));
  };
  if (const json::value* stop = fields.Find("stop"); stop != nullptr && stop->is_array()) {
    if (stop->get_array().size() > kMaxStopStrings) {
      fields.Fail("stop", fmt::format("stop has {} strings; at most {} are allowed",
                                      stop->get_array().size(), kMaxStopStrings));
      return;
    }
    for (const json::value& value : stop->get_array()) add(value);
  } else if (stop != nullptr && *stop != json::value("")) {  // "" by itself: no stop string
    add(*stop);
  }
  if (const json::array* ids = fields.Array("stop_token_ids")) {
    const size_t room = kMaxStopTokens - limits.max_eos_tokens;
    if (ids->size() > room) {
      fields.Fail(
          "stop_token_ids",
          fmt::format("stop_token_ids has {} entries; at most {} are allowed", ids->size(), room));
      return;
    }
    params->stop_token_ids = ReadTokens(fields, "stop_token_ids", *ids, limits.vocab_size);
  }
  params->include_stop_str_in_output = fields.Bool("include_stop_str_in_output", false);
}

// The rest of a sentence.
std::string TooManyChoices(const RequestLimits& limits) {
  return fmt::format(
      "this server takes at most {} choices in one request: as many as run and wait at the same "
      "time (--max-num-seqs and --max-queue), and 256 at most",
      limits.max_choices);
}

void ReadStreaming(RequestFields& fields, GenerationParams* params) {
  params->stream = fields.Bool("stream", false);
  const json::object* options = fields.Object("stream_options");
  if (options == nullptr) return;
  if (!params->stream) {
    fields.Fail("stream_options", "stream_options is only allowed with stream: true");
    return;
  }
  RequestFields inner(*options, fields.error(), "stream_options");
  params->include_usage = inner.Bool("include_usage", false);
  params->continuous_usage_stats =
      inner.Bool("continuous_usage_stats", false) && params->include_usage;
}

// All but max_tokens and logprobs, which chat and completions spell differently.
void ReadParams(RequestFields& fields, const RequestLimits& limits, GenerationParams* params) {
  RefuseUnsupported(fields);
  params->model = fields.String("model", "");
  ReadSampling(fields, limits, params);
  ReadStops(fields, limits, params);
  ReadStreaming(fields, params);
  params->n = static_cast<int32_t>(fields.Integer("n", 1, 1, kMaxN));
  if (params->n > limits.max_choices) {
    fields.Fail("n", fmt::format("n is {}; {}", params->n, TooManyChoices(limits)));
  }
  params->min_tokens =
      static_cast<int32_t>(fields.Integer("min_tokens", 0, 0, limits.max_model_len));
  params->ignore_eos = fields.Bool("ignore_eos", false);
  params->skip_special_tokens = fields.Bool("skip_special_tokens", true);
  params->cache_salt = fields.String("cache_salt", "");
  if (params->cache_salt.size() > kMaxCacheSaltBytes) {
    fields.Fail("cache_salt", fmt::format("cache_salt has {} bytes; at most {} are allowed",
                                          params->cache_salt.size(), kMaxCacheSaltBytes));
  }
}

void CheckMinTokens(RequestFields& fields, const GenerationParams& params) {
  if (params.max_tokens && params.min_tokens > *params.max_tokens) {
    fields.Fail("min_tokens", fmt::format("min_tokens must be at most max_tokens ({}), not {}",
                                          *params.max_tokens, params.min_tokens));
  }
}

void ReadPrompts(RequestFields& fields, const RequestLimits& limits, CompletionRequest* request) {
  const json::value* prompt = fields.Find("prompt");
  const auto text = [](const json::value& value) {
    return std::string(std::string_view(value.get_string()));
  };
  if (prompt != nullptr && prompt->is_string()) {
    request->prompts.emplace_back(text(*prompt));
    return;
  }
  const json::array* list = prompt != nullptr ? prompt->if_array() : nullptr;
  if (list == nullptr || list->empty()) {
    fields.Fail("prompt", "prompt is required: a string, a list of token ids, or a list of either");
    return;
  }
  if (list->front().is_number()) {
    request->prompts.emplace_back(ReadTokens(fields, "prompt", *list, limits.vocab_size));
    return;
  }
  if (list->size() * request->params.n > static_cast<size_t>(limits.max_choices)) {
    fields.Fail("prompt", fmt::format("{} prompts with n = {} make {} choices; {}", list->size(),
                                      request->params.n, list->size() * request->params.n,
                                      TooManyChoices(limits)));
    return;
  }
  for (const json::value& value : *list) {
    if (value.is_string()) {
      request->prompts.emplace_back(text(value));
    } else if (value.is_array() && !value.get_array().empty()) {
      request->prompts.emplace_back(
          ReadTokens(fields, "prompt", value.get_array(), limits.vocab_size));
    } else {
      fields.Fail("prompt", "prompt must be a string, a list of token ids, or a list of either");
    }
    if (fields.failed()) return;
  }
}

}  // namespace

std::optional<ApiError> ParseChat(const json::object& body, const RequestLimits& limits,
                                  ChatRequest* request) {
  std::optional<ApiError> error;
  RequestFields fields(body, &error);
  GenerationParams& params = request->params;
  ReadParams(fields, limits, &params);
  if (fields.Bool("echo", false)) fields.Fail("echo", "echo is not supported for chat");
  // The older name counts only where the newer one is absent.
  const char* key =
      fields.Find("max_completion_tokens") != nullptr ? "max_completion_tokens" : "max_tokens";
  if (const auto max_tokens = fields.MaybeInteger(key, 1, kMaxInt32)) {
    params.max_tokens = static_cast<int32_t>(*max_tokens);
  }
  CheckMinTokens(fields, params);
  const int64_t top = fields.Integer("top_logprobs", 0, 0, kMaxTopLogprobs);
  if (fields.Bool("logprobs", false)) {
    params.sampling.logprobs = static_cast<int32_t>(top);
  } else if (top > 0) {
    fields.Fail("top_logprobs", "top_logprobs is only allowed with logprobs: true");
  }
  request->parallel_tool_calls = fields.Bool("parallel_tool_calls", true);
  request->include_reasoning = fields.Bool("include_reasoning", true);
  if (!fields.failed()) ReadChatPrompt(fields, &request->prompt);
  return error;
}

std::optional<ApiError> ParseCompletion(const json::object& body, const RequestLimits& limits,
                                        CompletionRequest* request) {
  std::optional<ApiError> error;
  RequestFields fields(body, &error);
  GenerationParams& params = request->params;
  ReadParams(fields, limits, &params);
  request->echo = fields.Bool("echo", false);
  // With echo nothing need be generated: that is how prompts are scored.
  if (fields.Find("max_tokens") != nullptr) {
    params.max_tokens =
        static_cast<int32_t>(fields.Integer("max_tokens", 1, request->echo ? 0 : 1, kMaxInt32));
  }
  CheckMinTokens(fields, params);
  if (const json::value* logprobs = fields.Find("logprobs"); logprobs && !logprobs->is_bool()) {
    params.sampling.logprobs =
        static_cast<int32_t>(fields.Integer("logprobs", -1, 0, kMaxTopLogprobs));
  } else if (logprobs != nullptr && logprobs->get_bool()) {
    fields.Fail("logprobs", fmt::format("logprobs must be an integer between 0 and {}, not true",
                                        kMaxTopLogprobs));
  }
  request->add_special_tokens = fields.Bool("add_special_tokens", true);
  if (!fields.failed()) ReadPrompts(fields, limits, request);
  return error;
}

std::optional<ApiError> ParseTokenize(const json::object& body, const RequestLimits&,
                                      TokenizeRequest* request) {
  std::optional<ApiError> error;
  RequestFields fields(body, &error);
  request->model = fields.String("model", "");
  request->return_token_strs = fields.Bool("return_token_strs", false);
  if (fields.Find("messages") != nullptr) {
    ReadChatPrompt(fields, &request->prompt.emplace<ChatPrompt>(body.storage()));
    return error;
  }
  request->add_special_tokens = fields.Bool("add_special_tokens", true);
  if (fields.Find("prompt") == nullptr) {
    fields.Fail("prompt", "prompt (a string) or messages (a list) is required");
  }
  request->prompt = fields.String("prompt", "");
  return error;
}

std::optional<ApiError> ParseDetokenize(const json::object& body, const RequestLimits& limits,
                                        DetokenizeRequest* request) {
  std::optional<ApiError> error;
  RequestFields fields(body, &error);
  request->model = fields.String("model", "");
  const json::array* tokens = fields.Array("tokens");
  if (tokens == nullptr) {
    fields.Fail("tokens", "tokens is required: a list of token ids");
    return error;
  }
  request->tokens = ReadTokens(fields, "tokens", *tokens, limits.vocab_size);
  return error;
}

}  // namespace fathom
