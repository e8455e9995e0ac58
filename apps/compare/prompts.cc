#include "prompts.h"

#include <algorithm>
#include <boost/json.hpp>
#include <string_view>
#include <utility>

#include "base/mmap.h"

namespace fathom {
namespace {

namespace json = boost::json;

constexpr size_t kMaxFileBytes = size_t{64} << 20;
constexpr size_t kMaxPrompts = 1000;

struct OwnPrompt {
  const char* name;
  bool chat;
  const char* text;
};
// Of many kinds: a fault of an implementation is often one of a kind of text.
constexpr OwnPrompt kOwn[] = {
    {"sum", true, "What is 17 + 25?"},
    {"sky", true, "Explain in three sentences why the sky is blue."},
    {"palindrome", true, "Write a Python function that tells whether a word is a palindrome."},
    {"translation", true, "Translate into German: The train leaves at seven, not at eight."},
    {"sorting", true, "列出三种常见的排序算法，并说明各自的时间复杂度。"},
    {"list", true, "List the planets of the solar system as a JSON array of names."},
    {"riddle", true,
     "Three boxes hold apples, pears, or both, and all labels are wrong. How many "
     "fruits must be drawn to label them rightly? Think step by step."},
    {"story", false, "The lighthouse keeper had not spoken to anyone since the autumn, when"},
    {"code", false,
     "#include <vector>\n\n// Returns the greatest common divisor of all numbers.\n"
     "int GreatestCommonDivisor(const std::vector<int>& numbers) {\n"},
    {"repetition", false, "one two three four one two three four one two three four one two"},
};

// Long enough for positions beyond a few hundred, where mistakes of rotation show.
std::string LongText() {
  std::string text = "Heights of the stations of a mountain railway:\n";
  for (int station = 1; station <= 100; ++station) {
    text += fmt::format("Station {} lies {} metres above the sea.\n", station,
                        400 + station * station * 7 % 1931);
  }
  return text + "Which station lies highest, and how high is station 42?";
}

json::array UserMessage(std::string_view text) {
  return {json::object{{"role", "user"}, {"content", text}}};
}

Result<std::vector<TokenId>> EncodeChat(const LoadedEngine& loaded, const json::array& messages) {
  const SpannedText rendered =
      TRY(loaded.chat_template->Render({{"messages", messages}, {"add_generation_prompt", true}},
                                       {{"bos_token", loaded.tokenizer->bos_token()},
                                        {"eos_token", loaded.tokenizer->eos_token()}}));
  return loaded.tokenizer->Encode(rendered);
}

Status Encode(const LoadedEngine& loaded, ComparePrompt* prompt) {
  if (!prompt->tokens.empty()) return {};
  prompt->tokens = TRY(prompt->messages.empty() ? EncodeText(loaded, prompt->text)
                                                : EncodeChat(loaded, prompt->messages));
  if (prompt->tokens.empty()) return InvalidArgument("it is empty");
  return {};
}

bool Fits(const LoadedEngine& loaded, const ComparePrompt& prompt, int32_t max_tokens) {
  const auto room = static_cast<int64_t>(loaded.engine->max_model_len()) - max_tokens;
  return static_cast<int64_t>(prompt.tokens.size()) <= room;
}

Result<std::vector<TokenId>> Ids(const json::array& list, int64_t vocab_size) {
  std::vector<TokenId> ids;
  for (const json::value& value : list) {
    const int64_t* id = value.if_int64();
    if (id == nullptr || *id < 0 || *id >= vocab_size) {
      return InvalidArgument("its prompt has what is no token of the model");
    }
    ids.push_back(TokenId{static_cast<int32_t>(*id)});
  }
  return ids;
}

Result<ComparePrompt> ParseLine(std::string_view line, const LoadedEngine& loaded) {
  boost::system::error_code error;
  const json::value value = json::parse(line, error);
  if (error || !value.is_object()) return InvalidArgument("it is not a JSON object");
  const json::value* messages = value.get_object().if_contains("messages");
  const json::value* prompt = value.get_object().if_contains("prompt");
  ComparePrompt result;
  if (messages != nullptr && messages->is_array() && !messages->get_array().empty()) {
    if (!loaded.chat_template) return InvalidArgument("the model has no chat template");
    result.messages = messages->get_array();
  } else if (prompt != nullptr && prompt->is_string()) {
    result.text = prompt->get_string();
  } else if (prompt != nullptr && prompt->is_array()) {
    if (prompt->get_array().empty()) return InvalidArgument("its prompt has no token");
    result.tokens = TRY(Ids(prompt->get_array(), loaded.config.vocab_size));
  } else {
    return InvalidArgument("it has neither \"messages\" nor a \"prompt\" of text or token ids");
  }
  TRY(Encode(loaded, &result));
  return result;
}

Result<ComparePrompts> ReadPrompts(const std::string& path, const LoadedEngine& loaded,
                                   int32_t max_tokens) {
  const std::string text = TRY(ReadFile(path, kMaxFileBytes));
  ComparePrompts result;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string name = fmt::format("line {}", number);
    Result<ComparePrompt> prompt = ParseLine(line, loaded);
    if (!prompt.ok()) return prompt.status().WithContext(fmt::format("{}, {}", path, name));
    prompt->name = name;
    if (!Fits(loaded, *prompt, max_tokens)) {
      return InvalidArgument("{}, {}: {} tokens and an answer of {} are more than the model's {}",
                             path, name, prompt->tokens.size(), max_tokens,
                             loaded.engine->max_model_len());
    }
    if (result.prompts.size() == kMaxPrompts) {
      return InvalidArgument("{} has more than {} prompts", path, kMaxPrompts);
    }
    result.prompts.push_back(*std::move(prompt));
  }
  if (result.prompts.empty()) return InvalidArgument("{} has no line", path);
  return result;
}

}  // namespace

Result<std::vector<TokenId>> EncodeText(const LoadedEngine& loaded, const std::string& text) {
  return loaded.tokenizer->Encode(text, /*add_special_tokens=*/true);
}

Result<ComparePrompts> MakePrompts(const std::string& path, const LoadedEngine& loaded,
                                   int32_t max_tokens) {
  if (!path.empty()) return ReadPrompts(path, loaded, max_tokens);
  std::vector<ComparePrompt> own;
  const auto add = [&](std::string name, bool chat, std::string text) {
    ComparePrompt prompt{
        .name = std::move(name), .messages = {}, .text = std::move(text), .tokens = {}};
    if (chat && loaded.chat_template) prompt.messages = UserMessage(prompt.text);
    own.push_back(std::move(prompt));
  };
  for (const OwnPrompt& prompt : kOwn) add(prompt.name, prompt.chat, prompt.text);
  add("stations", true, LongText());
  ComparePrompts result;
  for (ComparePrompt& prompt : own) {
    TRY(Encode(loaded, &prompt));
    if (Fits(loaded, prompt, max_tokens)) {
      result.prompts.push_back(std::move(prompt));
    } else {
      result.left_out.push_back(prompt.name);
    }
  }
  if (result.prompts.empty()) {
    return InvalidArgument("no prompt fits: --max-tokens {} leaves too little of the model's {}",
                           max_tokens, loaded.engine->max_model_len());
  }
  return result;
}

}  // namespace fathom
