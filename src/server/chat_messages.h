// The messages and tools of a chat request, brought into the form that chat templates expect.
#pragma once

#include "server/json_fields.h"
#include "server/openai_request.h"

namespace fathom {

// Reads "messages" (required), "tools", "tool_choice", "add_generation_prompt",
// "continue_final_message", "chat_template_kwargs" and whether to think, of `body`, which `fields`
// read: what is read of the first two is freed, and texts are moved. `defaults`: template kwargs
// that requests leave open; may be null. Errors go to the reader.
void ReadChatPrompt(RequestFields& fields, boost::json::object& body,
                    const boost::json::object* defaults, ChatPrompt* prompt);

}  // namespace fathom
