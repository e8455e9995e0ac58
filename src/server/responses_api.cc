// The endpoints of OpenAI's Responses API.
#include <string>
#include <string_view>
#include <utility>

#include "base/printable.h"
#include "server/api.h"
#include "server/json_body.h"
#include "server/responses_generation.h"
#include "server/responses_request.h"

namespace fathom {

namespace json = boost::json;

namespace {

ApiError NoResponse(const std::string& id, int status, const char* param) {
  return {status,
          fmt::format("There is no response {}: it was never stored for you, or has made room for "
                      "later ones.",
                      Printable(id, 64)),
          "invalid_request_error", param, "previous_response_not_found"};
}

// Of /v1/responses/ID and /v1/responses/ID/cancel.
std::string IdIn(std::string_view path) {
  path.remove_prefix(std::string_view("/v1/responses/").size());
  return std::string(path.substr(0, path.find('/')));
}

}  // namespace

Api::Answer Api::Responses(HttpRequest& request, const WorkLimits& limits) {
  const size_t bytes = request.body.size();
  JsonBody body;
  if (auto error = JsonBody::Parse(std::move(request.body), limits, &body))
    return ErrorResponse(*error);
  json::array earlier(body.object().storage());
  if (const json::value* previous = body.object().if_contains("previous_response_id");
      previous != nullptr && previous->is_string()) {
    const std::string id(std::string_view(previous->get_string()));
    const auto stored = responses_.Get(request.owner, id);
    if (!stored || stored->messages.empty()) {
      return ErrorResponse(NoResponse(id, 400, "previous_response_id"));
    }
    earlier = EarlierMessages(stored->messages, bytes, limits, earlier.storage());
  }
  ResponsesRequest asked(body.storage());
  if (auto error = ParseResponses(body.Take(), Limits(), std::move(earlier), &asked)) {
    return ErrorResponse(*error);
  }
  GenerationSetup setup;
  ChatOutputOptions output;
  if (auto error = Prepare(std::move(asked.chat), request, limits, &setup, &output)) {
    return ErrorResponse(InWordsOfResponses(std::move(*error)));
  }
  setup.id = ResponseStore::NewId();
  // What was used, where the request left it open.
  for (const auto& [key, used] : {std::pair("temperature", setup.params.sampling.temperature),
                                  std::pair("top_p", setup.params.sampling.top_p)}) {
    if (asked.shown[key].is_null()) asked.shown[key] = AsWritten(used);
  }
  return std::make_unique<ResponsesGeneration>(
      std::move(setup), output,
      ResponseContext{.shown = std::move(asked.shown),
                      .messages = std::move(asked.messages),
                      .store = asked.store ? &responses_ : nullptr,
                      .owner = request.owner});
}

HttpResponse Api::StoredResponse(const HttpRequest& request) {
  const std::string id = IdIn(request.path);
  const auto stored = responses_.Get(request.owner, id);
  if (!stored) return ErrorResponse(NoResponse(id, 404, "response_id"));
  if (request.method != "DELETE") return {.body = stored->response};
  responses_.Erase(request.owner, id);
  return {.body =
              json::serialize(json::object{{"id", id}, {"object", "response"}, {"deleted", true}})};
}

// Ends the answer at its next token; whoever waits for it gets what there is.
HttpResponse Api::CancelResponse(const HttpRequest& request) {
  const std::string id = IdIn(request.path);
  const auto stored = responses_.Get(request.owner, id);
  if (!stored) return ErrorResponse(NoResponse(id, 404, "response_id"));
  if (stored->cancel == nullptr) return {.body = stored->response};
  *stored->cancel = true;
  // What it repeats of the request stands a few levels deeper than there.
  json::value response = json::parse(stored->response, {}, {.max_depth = kMaxJsonDepth + 8});
  response.get_object()["status"] = "cancelled";
  return {.body = json::serialize(response)};
}

}  // namespace fathom
