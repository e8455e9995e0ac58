// The endpoints of OpenAI's Responses API.
#include <fmt/format.h>

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

// Of a stored response, twice as large while it is made.
HttpResponse CopyOf(const std::string& response, const WorkLimits& limits) {
  BesideClaim claim(limits);
  if (!claim.Hold(2 * response.size()).ok()) return ErrorResponse(MemoryError(limits));
  return {.body = response};
}

}  // namespace

Api::Answer Api::Responses(HttpRequest& request, const WorkLimits& limits) {
  const size_t bytes = request.body.size();
  JsonBody body;
  if (auto error = JsonBody::Parse(std::move(request.body), limits, &body))
    return ErrorResponse(*error);
  BesideClaim copies(limits);  // what an answer repeats, and the conversation to go on with
  if (!copies.Hold(2 * bytes).ok()) return ErrorResponse(MemoryError(limits));
  json::array earlier(body.object().storage());
  if (const json::value* previous = body.object().if_contains("previous_response_id");
      previous != nullptr && previous->is_string()) {
    const std::string id(std::string_view(previous->get_string()));
    const auto stored = responses_.Get(request.owner, id);
    if (!stored || stored->messages.empty()) {
      return ErrorResponse(NoResponse(id, 400, "previous_response_id"));
    }
    if (!copies.Hold(2 * bytes + stored->messages.size()).ok()) {
      return ErrorResponse(MemoryError(limits));
    }
    earlier = EarlierMessages(stored->messages, bytes, limits, earlier.storage());
  }
  ResponsesRequest asked(body.storage());
  if (auto error = ParseResponses(body.Take(), Limits(), std::move(earlier), &asked, limits)) {
    return ErrorResponse(*error);
  }
  GenerationSetup setup;
  ChatOutputOptions output;
  if (auto error = Prepare(std::move(asked.chat), request, limits, &setup, &output)) {
    return ErrorResponse(InWordsOfResponses(std::move(*error)));
  }
  setup.id = ResponseStore::NewId();
  const SamplingParams& used = setup.params.sampling;
  std::string sampling = fmt::format(R"("temperature":{},"top_p":{},)", AsWritten(used.temperature),
                                     AsWritten(used.top_p));
  return std::make_unique<ResponsesGeneration>(
      std::move(setup), output,
      ResponseContext{.sampling = std::move(sampling),
                      .shown = std::move(asked.shown),
                      .messages = std::move(asked.messages),
                      .store = asked.store ? &responses_ : nullptr,
                      .owner = request.owner});
}

HttpResponse Api::StoredResponse(const HttpRequest& request, const WorkLimits& limits) {
  const std::string id = IdIn(request.path);
  const auto stored = responses_.Get(request.owner, id);
  if (!stored) return ErrorResponse(NoResponse(id, 404, "response_id"));
  if (request.method != "DELETE") return CopyOf(stored->response, limits);
  responses_.Erase(request.owner, id);
  return {.body =
              json::serialize(json::object{{"id", id}, {"object", "response"}, {"deleted", true}})};
}

// Ends the answer at its next token; whoever waits for it gets what there is.
HttpResponse Api::CancelResponse(const HttpRequest& request, const WorkLimits& limits) {
  const std::string id = IdIn(request.path);
  const auto stored = responses_.Get(request.owner, id);
  if (!stored) return ErrorResponse(NoResponse(id, 404, "response_id"));
  if (stored->cancel != nullptr) *stored->cancel = true;
  HttpResponse response = CopyOf(stored->response, limits);
  if (stored->cancel != nullptr && response.status == 200) {
    response.body = CancelledResponse(response.body);
  }
  return response;
}

}  // namespace fathom
