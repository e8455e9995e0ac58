// The messages and tools of a chat request, brought into the form that chat templates expect.
#pragma once

#include "server/json_fields.h"
#include "server/openai_request.h"

namespace fathom {

// Reads "messages" (required), "tools", "tool_choice", "add_generation_prompt",
// "chat_template_kwargs" and "reasoning_effort" of a request. Errors go to the reader.
void ReadChatPrompt(RequestFields& fields, ChatPrompt* prompt);

}  // namespace fathom
