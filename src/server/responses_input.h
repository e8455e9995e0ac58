// The items of a Responses request's input, as messages of a chat.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "server/json_fields.h"

namespace fathom {

// Appends "input" (required) of `body`, which `fields` read, to `*messages`, and frees its items.
// Errors go to the reader.
void ReadInput(RequestFields& fields, boost::json::object& body, boost::json::array* messages);

// What belongs to one message of the assistant: an answer, or consecutive items.
struct AssistantMessage {
  struct Call {
    std::string id, name, arguments;
  };
  std::string reasoning, content;
  std::vector<Call> calls;
};
boost::json::object ToChat(const AssistantMessage& message, boost::json::storage_ptr storage = {});

}  // namespace fathom
