#include "server/openai_response.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace fathom {

namespace json = boost::json;

namespace {

// JSON has no infinity.
double Finite(float logprob) {
  return std::max(static_cast<double>(logprob), -9999.0);
}

json::object TokenJson(const TokenNames& names, TokenId id, float logprob) {
  json::array bytes;
  for (const char c : names.tokenizer.TokenBytes(id)) {
    bytes.push_back(static_cast<unsigned char>(c));
  }
  return {{"token", names.Of(id)}, {"logprob", Finite(logprob)}, {"bytes", std::move(bytes)}};
}

}  // namespace

json::object ToJson(const Usage& usage) {
  json::object counts = {{"prompt_tokens", usage.prompt_tokens},
                         {"completion_tokens", usage.completion_tokens},
                         {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
                         {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  if (usage.reasoning_tokens) {
    counts["completion_tokens_details"] =
        json::object{{"reasoning_tokens", *usage.reasoning_tokens}};
  }
  return counts;
}

std::string TokenNames::Of(TokenId id) const {
  if (as_ids) return fmt::format("token_id:{}", Raw(id));
  return tokenizer.Decode({&id, 1}, /*skip_special_tokens=*/false);
}

double AsWritten(float value) {
  return std::strtod(fmt::format("{}", value).c_str(), nullptr);
}

json::array TokenIds(std::span<const TokenId> ids) {
  json::array list;
  for (const TokenId id : ids) list.emplace_back(Raw(id));
  return list;
}

Status AddPromptLogprobs(const Tokenizer& tokenizer, std::span<const TokenId> prompt,
                         std::span<const TokenLogprobs> logprobs, int32_t top,
                         const WorkLimits& limits, std::string* text) {
  text->append(top < 0 ? "null" : "[null");
  if (top < 0) return {};
  const TokenNames names{tokenizer};
  for (size_t i = 0; i < logprobs.size() && i + 1 < prompt.size(); ++i) {
    json::object entries;
    const auto add = [&](TokenId id, float logprob, json::value rank) {
      entries[std::to_string(Raw(id))] = json::object{
          {"logprob", Finite(logprob)}, {"rank", std::move(rank)}, {"decoded_token", names.Of(id)}};
    };
    const TokenId stands = prompt[i + 1];
    add(stands, logprobs[i].logprob, nullptr);
    const size_t shown = std::min(logprobs[i].top.size(), static_cast<size_t>(top));
    for (size_t rank = 0; rank < shown; ++rank) {
      add(logprobs[i].top[rank].first, logprobs[i].top[rank].second, rank + 1);
    }
    text->append(",").append(json::serialize(entries));
    TRY(limits.Check());
  }
  text->append("]");
  return {};
}

std::string Event(const json::value& data) {
  return "data: " + json::serialize(data) + "\n\n";
}

std::string ErrorEvent(const ApiError& error) {
  return "data: " + ToJson(error) + "\n\n";
}

Status AddChatLogprobs(const TokenNames& names, std::span<const GeneratedToken> tokens, bool named,
                       const WorkLimits& limits, std::string* text) {
  text->append(R"({"content":[)");
  bool first = true;
  for (const GeneratedToken& token : tokens) {
    TRY(limits.Check());
    if (!token.logprobs) continue;
    json::object entry = TokenJson(names, token.id, token.logprobs->logprob);
    json::array top;
    if (named) top.push_back(entry);
    for (const auto& [id, logprob] : token.logprobs->top) {
      if (named && id == token.id) continue;
      top.push_back(TokenJson(names, id, logprob));
    }
    entry["top_logprobs"] = std::move(top);
    text->append(std::exchange(first, false) ? "" : ",").append(json::serialize(entry));
  }
  text->append(R"(],"refusal":null})");
  return {};
}

void LegacyLogprobs::Add(TokenId id, const TokenLogprobs* logprobs) {
  const std::string name = names_.Of(id);
  json::value logprob, top;  // null
  if (logprobs != nullptr) {
    logprob = Finite(logprobs->logprob);
    json::object& likeliest = top.emplace_object();
    for (const auto& [other, of_it] : logprobs->top) {
      likeliest.emplace(names_.Of(other), Finite(of_it));
    }
    likeliest.emplace(name, Finite(logprobs->logprob));
  }
  const std::array<json::value, 4> values = {json::value(name), std::move(logprob), std::move(top),
                                             json::value(offset_)};
  for (size_t i = 0; i < values.size(); ++i) {
    arrays_[i].append(arrays_[i].empty() ? "" : ",").append(json::serialize(values[i]));
  }
  // Not of its name: a character may be several tokens.
  const std::string& bytes = names_.tokenizer.TokenBytes(id);
  offset_ += std::count_if(bytes.begin(), bytes.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

void LegacyLogprobs::Take(std::string* text) {
  constexpr std::array kBefore = {R"({"tokens":[)", R"(],"token_logprobs":[)",
                                  R"(],"top_logprobs":[)", R"(],"text_offset":[)"};
  for (size_t i = 0; i < kBefore.size(); ++i) {
    text->append(kBefore[i]).append(std::exchange(arrays_[i], {}));
  }
  text->append("]}");
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
