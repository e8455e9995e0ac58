// The bodies of the OpenAI API's requests, checked: JSON in, plain structs out, nothing else.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "engine/messages.h"
#include "server/api_error.h"
#include "server/structured_fields.h"

namespace fathom {

// What holds for a request that does not name its own: the model's generation_config.json.
struct SamplingDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
  std::optional<int32_t> max_tokens;   // of chats: completions have OpenAI's 16
  std::optional<int32_t> most_tokens;  // that any request gets, whatever it names
};

inline constexpr int kMaxStopStrings = 64;
inline constexpr size_t kMaxStopBytes = 1024;  // of one stop string
inline constexpr size_t kMaxCacheSaltBytes = 1024;
inline constexpr int kMaxN = 128;
inline constexpr int kMaxMessages = 16384;
inline constexpr int kMaxTools = 1024;

// What requests are checked against.
struct RequestLimits {
  SamplingDefaults defaults;
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;
  int32_t max_choices = 1;
  int32_t max_logprobs = kMaxTopLogprobs;
  size_t max_eos_tokens = 0;
  bool priorities = false;  // --scheduling-policy priority
  // --default-chat-template-kwargs: what requests leave open. Null: nothing.
  const boost::json::object* chat_defaults = nullptr;
};

// What chat and completions have in common.
struct GenerationParams {
  std::string model;  // "" if not named
  SamplingParams sampling;
  bool seeded = false;  // otherwise sampling.seed is to be drawn
  int32_t n = 1;
  std::optional<int32_t> max_tokens;
  int32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage_stats = false;
  int32_t priority = 0;    // a lower number comes before
  std::string cache_salt;  // only requests of the same share pages of their prompts
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;  // "token_id:5" where logprobs name tokens
  int32_t prompt_logprobs = -1;             // as SamplingParams::logprobs
  std::optional<int32_t> truncate_prompt_tokens;
  bool truncate_right = false;  // its last tokens go, otherwise its first
  std::string service_tier;     // "" if not named
  std::optional<AskedGrammar> grammar;
  std::vector<TokenId> allowed_token_ids;  // empty: all
  std::vector<std::string> bad_words;
};

// Lives in the storage of the body that it was read from.
struct ChatPrompt {
  explicit ChatPrompt(boost::json::storage_ptr storage = {})
      : messages(storage), tools(storage), template_kwargs(storage) {}
  boost::json::array messages;  // as chat templates expect them: content is a string or null
  boost::json::array tools;     // empty with tool_choice "none"
  std::vector<std::string> strict_tools;  // of these, whose arguments keep to their schemas
  boost::json::object template_kwargs;
  bool must_call = false;      // the answer is a call of one of the tools
  std::string must_call_name;  // ... of this one; "": of any
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the last message's content is the answer's beginning
};

struct ChatRequest {
  explicit ChatRequest(boost::json::storage_ptr storage = {}) : prompt(std::move(storage)) {}
  GenerationParams params;
  ChatPrompt prompt;
  bool parallel_tool_calls = true;
  bool include_reasoning = true;
  std::string echoed;  // the answer begins with it
};

using TextOrTokens = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest {
  GenerationParams params;
  std::vector<TextOrTokens> prompts;  // at least one
  bool echo = false;
  bool add_special_tokens = true;
};

struct TokenizeRequest {
  std::string model;
  std::variant<std::string, ChatPrompt> prompt;
  bool add_special_tokens = true;
  bool return_token_strs = false;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<TokenId> tokens;
};

// Each returns what is wrong with `body`, or fills in `*request`. Unknown fields are ignored; known
// ones that are not supported are errors unless they say what happens anyway.
std::optional<ApiError> ParseChat(boost::json::object body, const RequestLimits& limits,
                                  ChatRequest* request);
std::optional<ApiError> ParseCompletion(const boost::json::object& body,
                                        const RequestLimits& limits, CompletionRequest* request);
std::optional<ApiError> ParseTokenize(boost::json::object body, const RequestLimits& limits,
                                      TokenizeRequest* request);
std::optional<ApiError> ParseDetokenize(const boost::json::object& body,
                                        const RequestLimits& limits, DetokenizeRequest* request);

}  // namespace fathom
