// OpenAI's Responses API (https://platform.openai.com/docs/api-reference/responses): a request's
// body, brought into the form of a chat request.
#pragma once

#include <boost/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/work_limits.h"
#include "server/openai_request.h"

namespace fathom {

struct ResponsesRequest {
  explicit ResponsesRequest(boost::json::storage_ptr storage) : chat(std::move(storage)) {}
  ChatRequest chat;
  bool store = true;
  std::string messages;  // the conversation, as JSON: for what goes on with it
  std::string shown;     // what an answer repeats of its request: members of JSON
};

// The messages of an earlier response, of their JSON, for a request whose own body has
// `body_bytes`: its limit is raised by what they count for. Beyond it std::bad_alloc is thrown.
boost::json::array EarlierMessages(std::string_view text, size_t body_bytes,
                                   const WorkLimits& limits,
                                   const boost::json::storage_ptr& storage);

// `earlier`: the messages of previous_response_id; empty without one. `work`: bounds its time.
std::optional<ApiError> ParseResponses(boost::json::object body, const RequestLimits& limits,
                                       boost::json::array earlier, ResponsesRequest* request,
                                       const WorkLimits& work = {});

// What is wrong with the chat request that it has become.
ApiError InWordsOfResponses(ApiError error);

}  // namespace fathom
