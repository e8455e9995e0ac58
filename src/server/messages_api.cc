// The endpoints of Anthropic's Messages API.
#include <utility>

#include "server/api.h"
#include "server/json_body.h"
#include "server/messages_generation.h"
#include "server/messages_request.h"

namespace fathom {

namespace json = boost::json;

Api::Answer Api::Messages(HttpRequest& request, const WorkLimits& limits) {
  JsonBody body;
  if (auto error = JsonBody::Parse(std::move(request.body), limits, &body))
    return Refusal(request, *error);
  ChatRequest chat(body.storage());
  if (auto error = ParseMessages(body.Take(), Limits(), /*generates=*/true, &chat)) {
    return Refusal(request, *error);
  }
  GenerationSetup setup;
  ChatOutputOptions output;
  if (auto error = Prepare(std::move(chat), request, limits, &setup, &output)) {
    return Refusal(request, *error);
  }
  setup.id = "msg_" + request.id;
  return std::make_unique<MessagesGeneration>(std::move(setup), output);
}

HttpResponse Api::CountTokens(HttpRequest& request, const WorkLimits& limits) {
  JsonBody body;
  if (auto error = JsonBody::Parse(std::move(request.body), limits, &body))
    return Refusal(request, *error);
  ChatRequest chat(body.storage());
  if (auto error = ParseMessages(body.Take(), Limits(), /*generates=*/false, &chat)) {
    return Refusal(request, *error);
  }
  if (auto error = CheckModel(chat.params.model)) return Refusal(request, *error);
  std::vector<TokenId> tokens;
  OutputParserOptions unused;
  if (auto error = prompts_.EncodeChat(std::move(chat.prompt), limits, &tokens, &unused)) {
    return Refusal(request, *error);
  }
  return {.body = json::serialize(json::object{{"input_tokens", tokens.size()}})};
}

}  // namespace fathom
