// The form of an answer that must call tools.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "chat/tool_call_reader.h"
#include "server/api_error.h"
#include "server/openai_request.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

// A tool that may be called, and the schema of its arguments, as JSON.
struct CallableTool {
  std::string name;
  std::string parameters;
};

// The calls that an answer is held to; without tools to none.
struct HeldCalls {
  std::vector<CallableTool> tools;
  bool forced = false;   // the answer is a call, otherwise free text that may end in calls
  bool several = false;  // one after the other
};

// Those of a request: with a tool_choice that forces a call, or with strict tools. Tools that are
// not strict may then have any JSON object as arguments.
HeldCalls CallsOf(const ChatPrompt& prompt, bool parallel);

// Sets `*grammar` to these calls, each in the model's form with arguments by its schema. An error
// if the model has no tokens for calls.
std::optional<ApiError> GrammarOfCalls(const HeldCalls& held, ToolCallForm form,
                                       const Tokenizer& tokenizer,
                                       std::optional<AskedGrammar>* grammar);

}  // namespace fathom
