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

// Those that a request's tool_choice lets the answer call; none if it need not call any.
std::vector<CallableTool> ToolsToCall(const ChatPrompt& prompt);

// Sets `*grammar` to: one call of these tools, or more if `several`, each in the model's form with
// arguments by its schema, and nothing else. An error if the model has no tokens for calls.
std::optional<ApiError> GrammarOfCalls(const std::vector<CallableTool>& tools, ToolCallForm form,
                                       bool several, const Tokenizer& tokenizer,
                                       std::optional<AskedGrammar>* grammar);

}  // namespace fathom
