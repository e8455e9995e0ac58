// The endpoints of Anthropic's Messages API.
#include <utility>

#include "server/api.h"
#include "server/json_body.h"
#include "server/messages_generation.h"
#include "server/messages_request.h"

namespace fathom {

namespace json = boost::json;

namespace {

HttpResponse Refusal(const ApiError& error) {
  HttpResponse response = ErrorResponse(error);
  response.body = json::serialize(MessagesError(error));
  return response;
}

}  // namespace

Api::Answer Api::Messages(const HttpRequest& request, const WorkLimits& limits) {
  JsonBody body;
  if (auto error = JsonBody::Parse(request.body, limits, &body)) return Refusal(*error);
  ChatRequest chat(body.storage());
  if (auto error = ParseMessages(body.object(), Limits(), /*generates=*/true, &chat)) {
    return Refusal(*error);
  }
  GenerationSetup setup;
  ChatOutputOptions output;
  if (auto error = Prepare(std::move(chat), request, limits, &setup, &output)) {
    return Refusal(*error);
  }
  setup.id = "msg_" + request.id;
  return std::make_unique<MessagesGeneration>(std::move(setup), output);
}

HttpResponse Api::CountTokens(const HttpRequest& request, const WorkLimits& limits) {
  JsonBody body;
  if (auto error = JsonBody::Parse(request.body, limits, &body)) return Refusal(*error);
  ChatRequest chat(body.storage());
  if (auto error = ParseMessages(body.object(), Limits(), /*generates=*/false, &chat)) {
    return Refusal(*error);
  }
  if (auto error = CheckModel(chat.params.model)) return Refusal(*error);
  std::vector<TokenId> tokens;
  OutputParserOptions unused;
  if (auto error = prompts_.EncodeChat(std::move(chat.prompt), limits, &tokens, &unused)) {
    return Refusal(*error);
  }
  return {.body = json::serialize(json::object{{"input_tokens", tokens.size()}})};
}

}  // namespace fathom
