// Anthropic's Messages API (https://platform.claude.com/docs/en/api/messages): a request's body,
// brought into the form of a chat request.
#pragma once

#include <boost/json.hpp>
#include <optional>

#include "server/http.h"
#include "server/openai_request.h"

namespace fathom {

// As ParseChat, with Anthropic's names in what is wrong. Without `generates` tokens are only
// counted, and max_tokens is not needed. Unless a request switches thinking on, it is off.
std::optional<ApiError> ParseMessages(boost::json::object body, const RequestLimits& limits,
                                      bool generates, ChatRequest* request);

// {"type": "error", "error": {"type", "message"}}
boost::json::object MessagesError(const ApiError& error);

// What a request is refused with, in the form of the API that its path is of.
HttpResponse Refusal(const HttpRequest& request, const ApiError& error);

}  // namespace fathom
