#include "server/openai_response.h"

#include <algorithm>
#include <utility>

namespace fathom {

namespace json = boost::json;

namespace {

// JSON has no infinity.
double Finite(float logprob) {
  return std::max(static_cast<double>(logprob), -9999.0);
}

std::string TokenText(const Tokenizer& tokenizer, TokenId id) {
  return tokenizer.Decode({&id, 1}, /*skip_special_tokens=*/false);
}

json::object TokenJson(const Tokenizer& tokenizer, TokenId id, float logprob) {
  json::array bytes;
  for (const char c : tokenizer.TokenBytes(id)) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", TokenText(tokenizer, id)},
          {"logprob", Finite(logprob)},
          {"bytes", std::move(bytes)}};
}

}  // namespace

json::object ToJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

std::string Event(const json::value& data) {
  return "data: " + json::serialize(data) + "\n\n";
}

std::string ErrorEvent(const ApiError& error) {
  return "data: " + ToJson(error) + "\n\n";
}

json::value ChatLogprobs(const Tokenizer& tokenizer, std::span<const GeneratedToken> tokens) {
  json::array content;
  for (const GeneratedToken& token : tokens) {
    if (!token.logprobs) continue;
    json::object entry = TokenJson(tokenizer, token.id, token.logprobs->logprob);
    json::array top;
    for (const auto& [id, logprob] : token.logprobs->top) {
      top.push_back(TokenJson(tokenizer, id, logprob));
    }
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return json::object{{"content", std::move(content)}};
}

void LegacyLogprobs::Add(TokenId id, const TokenLogprobs* logprobs) {
  const std::string text = TokenText(tokenizer_, id);
  tokens_.emplace_back(text);
  text_offset_.emplace_back(offset_);
  offset_ += std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
  if (logprobs == nullptr) {
    token_logprobs_.emplace_back(nullptr);
    top_logprobs_.emplace_back(nullptr);
    return;
  }
  token_logprobs_.emplace_back(Finite(logprobs->logprob));
  json::object top;
  for (const auto& [other, logprob] : logprobs->top) {
    top.emplace(TokenText(tokenizer_, other), Finite(logprob));
  }
  top.emplace(text, Finite(logprobs->logprob));
  top_logprobs_.emplace_back(std::move(top));
}

json::object LegacyLogprobs::Take() {
  return {{"tokens", std::exchange(tokens_, {})},
          {"token_logprobs", std::exchange(token_logprobs_, {})},
          {"top_logprobs", std::exchange(top_logprobs_, {})},
          {"text_offset", std::exchange(text_offset_, {})}};
}

void Append(ChatDelta delta, ChatDelta* whole) {
  whole->reasoning += delta.reasoning;
  whole->content += delta.content;
  for (ToolCallDelta& call : delta.tool_calls) {
    if (!whole->tool_calls.empty() && whole->tool_calls.back().index == call.index) {
      whole->tool_calls.back().arguments += call.arguments;
    } else {
      whole->tool_calls.push_back(std::move(call));
    }
  }
}

json::object ToJson(const ChatDelta& delta) {
  json::object result;
  if (!delta.content.empty()) result["content"] = delta.content;
  if (!delta.reasoning.empty()) {
    result["reasoning"] = delta.reasoning;
    result["reasoning_content"] = delta.reasoning;
  }
  if (delta.tool_calls.empty()) return result;
  json::array calls;
  for (const ToolCallDelta& call : delta.tool_calls) {
    json::object function;
    if (!call.name.empty()) function["name"] = call.name;
    function["arguments"] = call.arguments;
    json::object entry = {{"index", call.index}, {"function", std::move(function)}};
    if (!call.id.empty()) {
      entry["id"] = call.id;
      entry["type"] = "function";
    }
    calls.push_back(std::move(entry));
  }
  result["tool_calls"] = std::move(calls);
  return result;
}

}  // namespace fathom
