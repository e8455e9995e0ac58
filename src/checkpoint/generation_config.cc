#include "checkpoint/generation_config.h"

#include <cstdint>

#include "checkpoint/json.h"

namespace fathom {

Result<GenerationConfig> ParseGenerationConfig(std::string_view json, int32_t vocab_size) {
  const boost::json::object object = TRY(ParseJsonObject("generation_config.json", json));
  Problems problems;
  Fields fields(object, "", problems);
  GenerationConfig config;
  config.temperature = fields.OptionalFloat("temperature", 0, 100);
  config.top_p = fields.OptionalFloat("top_p", 1e-6f, 1);
  config.min_p = fields.OptionalFloat("min_p", 0, 1);
  config.repetition_penalty = fields.OptionalFloat("repetition_penalty", 1e-3f, 1000);
  if (fields.Has("top_k")) config.top_k = fields.Int("top_k", -1, 1 << 24);
  if (fields.Has("max_new_tokens")) {
    config.max_new_tokens = fields.Int("max_new_tokens", 1, INT32_MAX);
  }
  config.eos = fields.Tokens("eos_token_id", vocab_size);
  config.do_sample = fields.Bool("do_sample", true);
  if (!problems.empty()) return problems.ToStatus("generation_config.json");
  return config;
}

}  // namespace fathom
