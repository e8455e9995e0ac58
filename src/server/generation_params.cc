#include "server/generation_params.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>
#include <utility>

#include "server/token_fields.h"
#include "server/unsupported_fields.h"

namespace fathom {

namespace json = boost::json;

namespace {

// Above OpenAI's 2, as in vLLM; what is above this is a mistake.
constexpr double kMaxTemperature = 1000;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

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
  sampling.temperature =
      fields.Number("temperature", defaults.temperature.value_or(1.0f), {0, kMaxTemperature});
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

// A prompt that is too long may be cut instead of refused.
void ReadTruncation(RequestFields& fields, const RequestLimits& limits, GenerationParams* params) {
  if (const auto most = fields.MaybeInteger("truncate_prompt_tokens", -1, limits.max_model_len)) {
    params->truncate_prompt_tokens =
        static_cast<int32_t>(*most == -1 ? limits.max_model_len : *most);
    if (*most == 0) fields.Fail("truncate_prompt_tokens", "truncate_prompt_tokens must not be 0");
  }
  const std::string side = fields.String("truncation_side", "left");
  if (side != "left" && side != "right") {
    fields.Fail("truncation_side", "truncation_side must be \"left\" or \"right\"");
  }
  params->truncate_right = side == "right";
}

// vLLM's fields for those who work with tokens.
void ReadTokenIds(RequestFields& fields, const RequestLimits& limits, GenerationParams* params) {
  params->return_token_ids = fields.Bool("return_token_ids", false);
  params->return_tokens_as_token_ids = fields.Bool("return_tokens_as_token_ids", false);
  if (const auto top = fields.MaybeInteger("prompt_logprobs", 0, limits.max_logprobs)) {
    params->prompt_logprobs = static_cast<int32_t>(*top);
    if (params->stream) {
      fields.Fail("prompt_logprobs", "prompt_logprobs is only there without stream: true");
    }
  }
}

}  // namespace

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

std::string TooManyChoices(const RequestLimits& limits) {
  return fmt::format(
      "this server takes at most {} choices in one request: as many as run and wait at the same "
      "time (--max-num-seqs and --max-queue), and 256 at most",
      limits.max_choices);
}

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
  params->priority = static_cast<int32_t>(
      fields.Integer("priority", 0, std::numeric_limits<int32_t>::min(), kMaxInt32));
  if (params->priority != 0 && !limits.priorities) {
    fields.Fail(
        "priority",
        "priority may only be 0: the server was started without --scheduling-policy priority");
  }
  params->service_tier = fields.String("service_tier", "");
  ReadTruncation(fields, limits, params);
  ReadTokenIds(fields, limits, params);
  params->grammar = ReadGrammar(fields);
  ReadTokenRules(fields, limits, params);
}

void CheckMinTokens(RequestFields& fields, const GenerationParams& params) {
  if (params.max_tokens && params.min_tokens > *params.max_tokens) {
    fields.Fail("min_tokens", fmt::format("min_tokens must be at most max_tokens ({}), not {}",
                                          *params.max_tokens, params.min_tokens));
  }
}

}  // namespace fathom
