// /tokenize and /detokenize: a text's tokens, and tokens' text.
#include <string>
#include <utility>

#include "server/api.h"
#include "server/json_body.h"

namespace fathom {

namespace json = boost::json;

HttpResponse Api::Tokenize(HttpRequest& request, const WorkLimits& limits) {
  JsonBody body;
  TokenizeRequest asked;
  if (auto error = JsonBody::Parse(std::move(request.body), limits, &body))
    return ErrorResponse(*error);
  if (auto error = ParseTokenize(body.Take(), Limits(), &asked)) return ErrorResponse(*error);
  if (auto error = CheckModel(asked.model)) return ErrorResponse(*error);
  std::vector<TokenId> tokens;
  if (auto* chat = std::get_if<ChatPrompt>(&asked.prompt)) {
    OutputParserOptions unused;
    if (auto error = prompts_.EncodeChat(std::move(*chat), limits, &tokens, &unused))
      return ErrorResponse(*error);
  } else {
    if (auto error = prompts_.EncodeText(std::get<std::string>(asked.prompt),
                                         asked.add_special_tokens, limits, &tokens)) {
      return ErrorResponse(*error);
    }
  }
  const bool is_chat = std::holds_alternative<ChatPrompt>(asked.prompt);
  return TokensAnswer(tokens, asked.return_token_strs, is_chat ? "messages" : "prompt", limits);
}

// Its size follows no body's: short texts of many tokens have long answers.
HttpResponse Api::TokensAnswer(std::span<const TokenId> tokens, bool with_strings,
                               const char* param, const WorkLimits& limits) const {
  BesideClaim claim(limits);
  std::string text = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[)", tokens.size(),
                                 engine_.max_model_len());
  const auto list = [&](const auto& append) -> Status {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i % 1024 == 0) {
        TRY(limits.Check());
        TRY(claim.Hold(tokens.size_bytes() + 2 * text.size()));  // growing, it doubles its room
      }
      if (i > 0) text += ',';
      append(tokens[i]);
    }
    return {};
  };
  Status made = list([&](TokenId id) { text += std::to_string(Raw(id)); });
  text += R"(],"token_strs":)";
  if (made.ok() && with_strings) {
    text += '[';
    made = list([&](TokenId id) {
      text += json::serialize(json::value(tokenizer_.Decode({&id, 1}, false)));
    });
    text += ']';
  } else {
    text += "null";
  }
  if (!made.ok()) return ErrorResponse(TextError(made, param, limits));
  text += '}';
  return {.body = std::move(text)};
}

HttpResponse Api::Detokenize(HttpRequest& request, const WorkLimits& limits) {
  JsonBody body;
  DetokenizeRequest asked;
  if (auto error = JsonBody::Parse(std::move(request.body), limits, &body))
    return ErrorResponse(*error);
  if (auto error = ParseDetokenize(body.object(), Limits(), &asked)) return ErrorResponse(*error);
  if (auto error = CheckModel(asked.model)) return ErrorResponse(*error);
  const auto most = static_cast<size_t>(engine_.max_model_len());
  if (asked.tokens.size() > most) {
    return ErrorResponse(BadParameter(
        "tokens", fmt::format("tokens has {} ids; at most {} are allowed, the model's context: "
                              "send them in parts",
                              asked.tokens.size(), most)));
  }
  size_t bytes = 0;
  for (const TokenId id : asked.tokens) bytes += tokenizer_.TokenBytes(id).size();
  BesideClaim claim(limits);
  if (const Status room = claim.Hold(6 * bytes); !room.ok()) {  // its copies, and JSON
    return ErrorResponse(TextError(room, "tokens", limits));
  }
  return {.body =
              json::serialize(json::object{{"prompt", tokenizer_.Decode(asked.tokens, false)}})};
}

}  // namespace fathom
