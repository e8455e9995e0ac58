#include "server/prompt_encoder.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "server/json_body.h"

namespace fathom {

namespace json = boost::json;

namespace {

size_t LongestToken(const Tokenizer& tokenizer) {
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, tokenizer.TokenBytes(TokenId(id)).size());
  }
  return longest;
}

// Brings the calls of earlier messages into the form in which the template writes them.
void FitCalls(const TemplateTraits& traits, json::array* messages) {
  for (json::value& entry : *messages) {
    json::object& message = entry.get_object();
    json::value* calls = message.if_contains("tool_calls");
    if (calls == nullptr) continue;
    json::value& content = message["content"];
    if (content.is_null() || content == json::value("")) {
      content = traits.null_content ? json::value(nullptr) : json::value("");
    }
    for (json::value& call : calls->get_array()) {
      if (!traits.object_arguments) break;
      json::value& arguments = call.get_object()["function"].get_object()["arguments"];
      arguments = ParseAgain(arguments.get_string(), arguments.storage());
    }
  }
}

// Where the last message's content stands in the prompt: [begin, end). What comes after it is cut
// off, so that the model goes on with it. None if the template does not write it as it stands;
// whitespace at its end may be gone.
std::optional<std::pair<size_t, size_t>> FinalMessageIn(std::string_view prompt,
                                                        std::string_view wanted) {
  size_t at = prompt.rfind(wanted);
  if (at == prompt.npos) {
    wanted = wanted.substr(0, wanted.find_last_not_of(" \t\n\r") + 1);
    at = wanted.empty() ? prompt.npos : prompt.rfind(wanted);
  }
  if (at == prompt.npos) return std::nullopt;
  return std::pair(at, at + wanted.size());
}

// Of an answer that began with `begun`, after `before`.
OutputParserOptions OptionsWithin(std::string_view before, std::string_view begun) {
  const size_t think = begun.rfind("<think>"), end = begun.rfind("</think>");
  if (think == begun.npos && end == begun.npos) {
    return {.starts_in_reasoning =
                OptionsAfter(before, /*has_think_token=*/false).starts_in_reasoning};
  }
  return {.starts_in_reasoning = think != begun.npos && (end == begun.npos || end < think)};
}

// `completion`: what the request asks for, if it says.
ApiError TooLong(int32_t max_model_len, const std::string& prompt_tokens,
                 std::optional<int64_t> completion, const char* what) {
  const std::string rest =
      completion
          ? fmt::format(" and asks for {} in the completion. Please shorten either.", *completion)
          : std::string(", which leaves no room for an answer. Please shorten it.");
  return BadParameter(what,
                      fmt::format("This model's maximum context length is {} tokens. However, your "
                                  "request has {} tokens in the {}{}",
                                  max_model_len, prompt_tokens, what, rest),
                      "context_length_exceeded");
}

}  // namespace

ApiError TextError(const Status& status, std::string param, const WorkLimits& limits) {
  if (limits.memory != nullptr && !limits.memory->failure().ok()) return MemoryError(limits);
  const bool of_request = status.code() == StatusCode::kInvalidArgument ||
                          status.code() == StatusCode::kUnimplemented ||
                          status.code() == StatusCode::kResourceExhausted;
  if (!of_request) return EngineError(status);
  return BadParameter(std::move(param), status.message());
}

PromptEncoder::PromptEncoder(const Tokenizer& tokenizer, std::optional<ChatTemplate> chat_template,
                             AnswerForm form, int32_t max_model_len)
    : tokenizer_(tokenizer),
      chat_template_(std::move(chat_template)),
      trusted_({{"bos_token", tokenizer.bos_token()}, {"eos_token", tokenizer.eos_token()}}),
      traits_(chat_template_ ? FindTraits(*chat_template_, trusted_) : TemplateTraits()),
      form_({.tool_calls = form.tool_calls ? form.tool_calls : traits_.tool_call_form,
             .parse_reasoning = form.parse_reasoning}),
      max_model_len_(max_model_len),
      max_token_bytes_(LongestToken(tokenizer)) {}

// Tools that never reach the prompt, or calls that come back as text, would be a wrong answer.
std::optional<ApiError> PromptEncoder::CheckTools() const {
  if (!traits_.reads_tools) {
    return BadParameter("tools",
                        "This model's chat template does not read tools, so that the model would "
                        "never hear of them: fathom serve --chat-template FILE gives it another.");
  }
  if (!form_.tool_calls) {
    return BadParameter("tools",
                        "This model's chat template does not show how calls of tools are written: "
                        "fathom serve --tool-call-parser deepseek_v3 (V3, V3-0324, R1) or "
                        "deepseek_v31 says it.");
  }
  return std::nullopt;
}

std::optional<ApiError> PromptEncoder::EncodeChat(ChatPrompt prompt, const WorkLimits& limits,
                                                  std::vector<TokenId>* tokens,
                                                  OutputParserOptions* parser) const {
  if (!chat_template_) {
    return BadParameter("messages", "This model has no chat template: use /v1/completions.");
  }
  const bool parse_tools = !prompt.tools.empty();
  if (parse_tools) {
    if (auto error = CheckTools()) return error;
  }
  FitCalls(traits_, &prompt.messages);
  json::string last_content(prompt.messages.storage());
  if (prompt.continue_final_message) {
    last_content = prompt.messages.back().get_object().at("content").get_string();
  }
  json::object variables = std::move(prompt.template_kwargs);
  variables["messages"] = std::move(prompt.messages);
  variables["add_generation_prompt"] = prompt.add_generation_prompt;
  variables.erase("tools");
  if (parse_tools) variables["tools"] = std::move(prompt.tools);
  Result<SpannedText> text = chat_template_->Render(std::move(variables), trusted_, limits);
  if (!text.ok())
    return TextError(text.status().WithContext("the chat template"), "messages", limits);
  BesideClaim claim(limits);
  if (const Status room = claim.Hold(2 * text->text().size());
      !room.ok()) {  // it, or it and a part
    return TextError(room, "messages", limits);
  }
  std::optional<OutputParserOptions> within;
  if (prompt.continue_final_message) {
    const auto last = FinalMessageIn(text->text(), last_content);
    if (!last) {
      return BadParameter("messages",
                          "the last message cannot be continued: this model's chat template does "
                          "not write its content as it stands");
    }
    const auto [begin, end] = *last;
    const std::string_view rendered = text->text();
    within = OptionsWithin(rendered.substr(0, begin), rendered.substr(begin, end - begin));
    *text = text->Slice(0, end);
  }
  const size_t fits = max_token_bytes_ * static_cast<size_t>(max_model_len_);
  if (text->text().size() > fits) {
    return TooLong(max_model_len_,
                   fmt::format("at least {}", text->text().size() / max_token_bytes_), {},
                   "messages");
  }
  Result<std::vector<TokenId>> encoded = tokenizer_.Encode(*text, limits);
  if (!encoded.ok()) return TextError(encoded.status(), "messages", limits);
  *tokens = std::move(*encoded);
  *parser = within ? *within : OptionsAfter(text->text(), tokenizer_.IdOf("<think>").has_value());
  parser->parse_reasoning = form_.parse_reasoning;
  parser->parse_tools = parse_tools;
  if (parse_tools) parser->tool_call_form = *form_.tool_calls;
  return std::nullopt;
}

std::optional<ApiError> PromptEncoder::EncodeText(const TextOrTokens& prompt,
                                                  bool add_special_tokens, const WorkLimits& limits,
                                                  std::vector<TokenId>* tokens) const {
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {
    *tokens = *ids;
    return std::nullopt;
  }
  const std::string& text = std::get<std::string>(prompt);
  if (text.size() > max_token_bytes_ * static_cast<size_t>(max_model_len_)) {
    return TooLong(max_model_len_, fmt::format("at least {}", text.size() / max_token_bytes_), {},
                   "prompt");
  }
  Result<std::vector<TokenId>> encoded = tokenizer_.Encode(text, add_special_tokens, limits);
  if (!encoded.ok()) return TextError(encoded.status(), "prompt", limits);
  *tokens = std::move(*encoded);
  return std::nullopt;
}

std::optional<ApiError> PromptEncoder::FitTokens(const GenerationParams& params, const char* what,
                                                 const SamplingDefaults& defaults,
                                                 GenerationPrompt* prompt) const {
  std::vector<TokenId>& tokens = prompt->tokens;
  if (tokens.empty()) return BadParameter(what, fmt::format("the {} is empty", what));
  const size_t most = static_cast<size_t>(params.truncate_prompt_tokens.value_or(0));
  if (most > 0 && tokens.size() > most) {
    if (params.truncate_right) {
      tokens.resize(most);
    } else {
      tokens.erase(tokens.begin(), tokens.end() - static_cast<ptrdiff_t>(most));
    }
  }
  // A client's fixed cap may be more than is left; no answer can be longer than the context.
  const int64_t room = max_model_len_ - static_cast<int64_t>(tokens.size());
  const int32_t wanted = params.max_tokens.value_or(1);
  if (room < std::min(wanted, 1) || wanted > max_model_len_) {
    return TooLong(max_model_len_, std::to_string(tokens.size()), params.max_tokens, what);
  }
  const int32_t asked = params.max_tokens.value_or(defaults.max_tokens.value_or(max_model_len_));
  const int32_t limit = defaults.most_tokens.value_or(max_model_len_);
  prompt->max_tokens = static_cast<int32_t>(std::min<int64_t>({room, asked, limit}));
  return std::nullopt;
}

}  // namespace fathom
