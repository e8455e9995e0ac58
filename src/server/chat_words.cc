#include "server/chat_words.h"

#include <algorithm>

#include "server/unsupported_fields.h"

namespace fathom {

namespace json = boost::json;

namespace {

constexpr const char* kOfChat = "/v1/chat/completions has it";
constexpr UnsupportedField kOfChatAlone[] = {
    {"n", "[1]", kOfChat},
    {"logprobs", "[false]", kOfChat},
    {"top_logprobs", "[0]", kOfChat},
    {"logprob_token_ids", "[]", kOfChat},
    {"prompt_logprobs", "[]", kOfChat},
    {"return_token_ids", "[false]", kOfChat},
    {"return_tokens_as_token_ids", "[false]", kOfChat},
    {"echo", "[false]", kOfChat},
    {"include_reasoning", "[true]", kOfChat},
    {"continue_final_message", "[false]", kOfChat},
    {"add_generation_prompt", "[true]", kOfChat},
};

bool IsWord(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Whether `word` stands at `at`, not within a longer one.
bool StandsAt(std::string_view text, size_t at, std::string_view word) {
  if (text.substr(at, word.size()) != word) return false;
  const size_t end = at + word.size();
  const bool begins = at == 0 || !IsWord(word.front()) || !IsWord(text[at - 1]);
  return begins && (end == text.size() || !IsWord(word.back()) || !IsWord(text[end]));
}

}  // namespace

void TakeChatFields(RequestFields& fields, const json::object& body,
                    std::initializer_list<std::string_view> own, json::object* chat) {
  RefuseFields(fields, kOfChatAlone);
  if (const json::object* options = fields.Object("stream_options")) {
    RequestFields inner(*options, fields.error(), "stream_options");
    constexpr UnsupportedField kUsage = {"continuous_usage_stats", "[false]", kOfChat};
    RefuseFields(inner, {&kUsage, 1});
  }
  for (const auto& [key, value] : body) {
    // Usage is there without being asked for.
    if (key == "stream_options" || std::ranges::find(own, std::string_view(key)) != own.end()) {
      continue;
    }
    (*chat)[key] = value;
  }
}

std::string Reworded(std::string_view text, Words words) {
  std::string result;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quoted && text[i] == '\\' && i + 1 < text.size()) {
      result.append(text.substr(i++, 2));
      continue;
    }
    if (text[i] == '"') quoted = !quoted;
    const auto word = std::ranges::find_if(
        words, [&](const auto& pair) { return !quoted && StandsAt(text, i, pair.first); });
    if (word == words.end()) {
      result += text[i];
    } else {
      result += word->second;
      i += word->first.size() - 1;
    }
  }
  return result;
}

ApiError Reworded(ApiError error, Words words) {
  error.param = Reworded(error.param, words);
  error.message = Reworded(error.message, words);
  return error;
}

}  // namespace fathom
