#include "serve_defaults.h"

#include <boost/json.hpp>
#include <cstdint>
#include <optional>

#include "server/json_fields.h"

namespace fathom {
namespace {

namespace json = boost::json;

SamplingDefaults DefaultsOf(const GenerationConfig& config) {
  SamplingDefaults defaults{.temperature = config.temperature,
                            .top_p = config.top_p,
                            .min_p = config.min_p,
                            .repetition_penalty = config.repetition_penalty,
                            .top_k = config.top_k,
                            .max_tokens = config.max_new_tokens};
  if (!config.do_sample) defaults.temperature = 0.0f;
  return defaults;
}

Result<json::object> ObjectOf(const char* flag, const std::string& text) {
  if (text.empty()) return json::object();
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  if (error || !value.is_object()) {
    return InvalidArgument("{} is not a JSON object as '{{\"name\": value}}': {}", flag, text);
  }
  return value.get_object();
}

Status Override(const json::object& given, SamplingDefaults* defaults) {
  std::optional<ApiError> error;
  RequestFields fields(given, &error);
  for (const auto& [key, value] : given) {
    const auto number = [&](NumberRange range) {
      return static_cast<float>(fields.Number(key, 0, range));
    };
    if (key == "temperature") {
      defaults->temperature = number({0, 1000});
    } else if (key == "top_p") {
      defaults->top_p = number({0, 1, true});
    } else if (key == "min_p") {
      defaults->min_p = number({0, 1});
    } else if (key == "repetition_penalty") {
      defaults->repetition_penalty = number({0.001, 10});
    } else if (key == "top_k") {
      defaults->top_k = static_cast<int32_t>(fields.Integer(key, 0, -1, 1 << 30));
    } else if (key == "max_new_tokens") {
      // What an operator says is a limit too, as in vLLM; what a model says is a default alone.
      defaults->max_tokens = static_cast<int32_t>(fields.Integer(key, 1, 1, INT32_MAX));
      defaults->most_tokens = defaults->max_tokens;
    } else {
      fields.Fail(key, fmt::format("{} is none of temperature, top_p, top_k, min_p, "
                                   "repetition_penalty and max_new_tokens",
                                   std::string_view(key)));
    }
  }
  if (error) return InvalidArgument("--override-generation-config: {}", error->message);
  return {};
}

}  // namespace

Status CheckDefaults(const ServeOptions& options) {
  SamplingDefaults unused;
  const json::object sampling =
      TRY(ObjectOf("--override-generation-config", options.override_generation_config));
  TRY(Override(sampling, &unused));
  TRY(ObjectOf("--default-chat-template-kwargs", options.default_template_kwargs));
  return {};
}

Status SetDefaults(const ServeOptions& options, const GenerationConfig& config,
                   ServedEngine* served) {
  if (options.generation_config == "auto") served->defaults = DefaultsOf(config);
  const json::object sampling =
      TRY(ObjectOf("--override-generation-config", options.override_generation_config));
  TRY(Override(sampling, &served->defaults));
  served->chat_defaults =
      TRY(ObjectOf("--default-chat-template-kwargs", options.default_template_kwargs));
  return {};
}

}  // namespace fathom
