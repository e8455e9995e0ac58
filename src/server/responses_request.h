// OpenAI's Responses API (https://platform.openai.com/docs/api-reference/responses): a request's
// body, brought into the form of a chat request.
#pragma once

#include <boost/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "server/openai_request.h"

namespace fathom {

struct ResponsesRequest {
  explicit ResponsesRequest(boost::json::storage_ptr storage) : chat(std::move(storage)) {}
  ChatRequest chat;
  bool store = true;
  std::string messages;       // the conversation, as JSON: for what goes on with it
  boost::json::object shown;  // what an answer repeats of its request
};

// `earlier`: the messages of previous_response_id, as JSON; "" without one.
std::optional<ApiError> ParseResponses(boost::json::object body, const RequestLimits& limits,
                                       const std::string& earlier, ResponsesRequest* request);

// What is wrong with the chat request that it has become.
ApiError InWordsOfResponses(ApiError error);

}  // namespace fathom
