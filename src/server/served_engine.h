// What a server serves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "chat/chat_template.h"
#include "chat/tool_call_reader.h"
#include "engine/messages.h"
#include "grammar/grammar_compiler.h"
#include "server/openai_request.h"
#include "server/request_stream.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

// What is referred to outlives the server. `outputs` is where the engine's outputs go. Without a
// template there is no chat.
struct ServedEngine {
  EngineClient& engine;
  EngineOutputs& outputs;
  const Tokenizer& tokenizer;
  std::optional<ChatTemplate> chat_template;
  // How the model writes tool calls; unless given, as its template does.
  std::optional<ToolCallForm> tool_call_form;
  bool parse_reasoning = true;           // otherwise thinking is content, with its markers
  std::vector<std::string> model_names;  // the first one is reported
  std::string sources;                   // of this build, for benchmarks; "": not said
  SamplingDefaults defaults;
  std::vector<TokenId> eos_tokens;
  int32_t vocab_size = 0;               // token ids that requests may name: below this
  GrammarCompiler* grammars = nullptr;  // null: answers are free
  int32_t max_choices = 256;            // prompts x n of one HTTP request
  int32_t max_logprobs = kMaxTopLogprobs;
  bool priorities = false;                 // requests may have one
  boost::json::object chat_defaults = {};  // template kwargs that requests leave open
};

}  // namespace fathom
