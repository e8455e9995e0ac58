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
  bool strict = false;  // nothing that they do not name, in objects without names neither
};

// The calls that an answer is held to; without tools to none.
struct HeldCalls {
  std::vector<CallableTool> tools;
  bool forced = false;   // the answer is a call, otherwise free text that may end in calls
  bool several = false;  // one after the other
};

// Whether tools may stand beside a grammar: free text under it, or calls.
bool GoesWithTools(const AskedGrammar& grammar, const ChatPrompt& prompt);

// Those of a request: with a tool_choice that forces a call, with strict tools, or where the text
// is held to a form. Tools that are not strict may then have any JSON object as arguments.
HeldCalls CallsOf(const ChatPrompt& prompt, bool parallel, bool text_held);

// Sets `*grammar` to these calls, each in the model's form with arguments by its schema; or, where
// no call is forced, to what it is instead. An error if the model has no tokens for calls, or the
// schema of the text or of a tool cannot be held to.
// REQUIRES: GoesWithTools(**grammar), if there is one.
std::optional<ApiError> GrammarOfCalls(const HeldCalls& held, ToolCallForm form,
                                       const Tokenizer& tokenizer,
                                       std::optional<AskedGrammar>* grammar);

}  // namespace fathom
