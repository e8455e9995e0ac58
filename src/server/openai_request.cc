#include "server/openai_request.h"

#include <limits>
#include <utility>

#include "server/chat_messages.h"
#include "server/generation_params.h"
#include "server/json_fields.h"
#include "server/token_fields.h"
#include "server/tool_grammar.h"
#include "server/unsupported_fields.h"

namespace fathom {

namespace json = boost::json;

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

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

// It goes back to nobody, but who keeps it elsewhere relies on what it may be.
void CheckMetadata(RequestFields& fields) {
  const json::object* metadata = fields.Object("metadata");
  if (metadata == nullptr) return;
  RequestFields inner(*metadata, fields.error(), "metadata");
  for (const auto& [key, value] : *metadata) inner.String(key, "");
}

// What completions have, and a chat has not: its template says where special tokens stand.
constexpr UnsupportedField kNotInChats[] = {{"add_special_tokens", "[false]"}};

}  // namespace

std::optional<ApiError> ParseChat(json::object body, const RequestLimits& limits,
                                  ChatRequest* request) {
  std::optional<ApiError> error;
  RequestFields fields(body, &error);
  GenerationParams& params = request->params;
  RefuseFields(fields, kNotInChats);
  CheckMetadata(fields);
  ReadParams(fields, limits, &params);
  // The older name counts only where the newer one is absent.
  const char* key =
      fields.Find("max_completion_tokens") != nullptr ? "max_completion_tokens" : "max_tokens";
  if (const auto max_tokens = fields.MaybeInteger(key, 1, kMaxInt32)) {
    params.max_tokens = static_cast<int32_t>(*max_tokens);
  }
  CheckMinTokens(fields, params);
  const int64_t top = fields.Integer("top_logprobs", 0, 0, limits.max_logprobs);
  if (fields.Bool("logprobs", false)) {
    params.sampling.logprobs = static_cast<int32_t>(top);
  } else if (top > 0) {
    fields.Fail("top_logprobs", "top_logprobs is only allowed with logprobs: true");
  }
  ReadLogprobTokenIds(fields, limits, &params);
  request->parallel_tool_calls = fields.Bool("parallel_tool_calls", true);
  request->include_reasoning = fields.Bool("include_reasoning", true);
  if (!fields.failed()) ReadChatPrompt(fields, body, limits.chat_defaults, &request->prompt);
  const bool held = request->prompt.must_call || !request->prompt.strict_tools.empty();
  if (held && (params.ignore_eos || params.min_tokens > 0)) {
    fields.Fail(params.ignore_eos ? "ignore_eos" : "min_tokens",
                "ignore_eos and min_tokens contradict strict tools, and a tool_choice that forces "
                "a call");
  }
  if (params.grammar && !request->prompt.tools.empty() &&
      !GoesWithTools(*params.grammar, request->prompt)) {
    fields.Fail(
        "tools",
        fmt::format("tools cannot be called where {} holds the answer, unless by a schema "
                    "with strict: true: say tool_choice: \"none\", or leave one of them out",
                    params.grammar->param));
  }
  if (!fields.failed() && fields.Bool("echo", false)) {
    const json::object& last = request->prompt.messages.back().get_object();
    const json::value& content = last.at("content");
    if (last.at("role") == json::value("assistant") && content.is_string()) {
      request->echoed = std::string(std::string_view(content.get_string()));
    }
  }
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
        static_cast<int32_t>(fields.Integer("logprobs", -1, 0, limits.max_logprobs));
  } else if (logprobs != nullptr && logprobs->get_bool()) {
    fields.Fail("logprobs", fmt::format("logprobs must be an integer between 0 and {}, not true",
                                        limits.max_logprobs));
  }
  ReadLogprobTokenIds(fields, limits, &params);
  request->add_special_tokens = fields.Bool("add_special_tokens", true);
  if (!fields.failed()) ReadPrompts(fields, limits, request);
  return error;
}

std::optional<ApiError> ParseTokenize(json::object body, const RequestLimits& limits,
                                      TokenizeRequest* request) {
  std::optional<ApiError> error;
  RequestFields fields(body, &error);
  RefuseUnsupported(fields);
  request->model = fields.String("model", "");
  request->return_token_strs = fields.Bool("return_token_strs", false);
  if (fields.Find("messages") != nullptr) {
    ReadChatPrompt(fields, body, limits.chat_defaults,
                   &request->prompt.emplace<ChatPrompt>(body.storage()));
    return error;
  }
  request->add_special_tokens = fields.Bool("add_special_tokens", true);
  const json::value* prompt = fields.Find("prompt");
  if (prompt == nullptr) {
    fields.Fail("prompt", "prompt (a string) or messages (a list) is required");
  } else if (prompt->is_array()) {
    fields.Fail("prompt", "prompt must be a string, not a list: send a request for each prompt");
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
