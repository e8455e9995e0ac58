// A model's text, as it streams, into reasoning, content and tool calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chat/tool_call_reader.h"

namespace fathom {

// What one Push adds to one tool call. `id` and `name` are whole, and only in the first delta.
struct ToolCallDelta {
  int index = 0;
  std::string id;
  std::string name;
  std::string arguments;  // the next piece of the raw text, meant to be JSON
};

struct ChatDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallDelta> tool_calls;
  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

struct OutputParserOptions {
  bool starts_in_reasoning = false;  // the prompt ends inside <think>
  // <think> and </think> count wherever the first of them stands. Otherwise <think> counts at the
  // beginning only, and is text in what follows.
  bool may_think_late = false;
  bool parse_reasoning = true;  // <think>...</think>
  bool parse_tools = false;     // tool calls
  ToolCallForm tool_call_form = ToolCallForm::kNameFirst;
  // Tool-call ids derive from it; without one they are random.
  std::optional<uint64_t> tool_call_id_seed;
};

// Incremental; one per choice. However the text is cut into pieces, the deltas concatenate to the
// same whole. No byte is lost but markers, the whitespace around tool calls, and a last call that
// is cut before its name is whole: a call without a name comes back as content, an unterminated
// call keeps the arguments it has. Memory is bounded by one Push and kMaxToolNameBytes; time is
// linear in the text.
class OutputParser {
 public:
  static constexpr size_t kMaxToolNameBytes = ToolCallReader::kMaxHeadBytes;

  explicit OutputParser(OutputParserOptions options);
  // Holds back only what may be the start of a marker, and the name of a call until it is whole.
  ChatDelta Push(std::string_view text);
  // What was held back. REQUIRES: no Push afterwards.
  ChatDelta Finish();
  bool saw_tool_calls() const { return next_index_ > 0; }
  // Between the markers of a call, also once Finish() has cut it.
  bool in_call() const { return state_ == State::kCallHead || state_ == State::kArguments; }
  bool in_reasoning() const {
    return state_ == State::kReasoningStart || state_ == State::kReasoning;
  }

 private:
  enum class State {
    kReasoningStart,  // reasoning, nothing but whitespace so far
    kReasoning,
    kContentStart,  // content, nothing but whitespace so far: <think> may still follow
    kContent,
    kBetweenCalls,  // tool calls have begun and not ended
    kCallHead,      // the name of the call is not whole
    kArguments,
  };

  std::span<const std::string_view> Markers() const;  // those that mean something in this state
  void Text(std::string_view text, ChatDelta& delta);
  void Marker(std::string_view marker, ChatDelta& delta);
  void Content(std::string_view text, ChatDelta& delta);
  void CallText(std::string_view text, ChatDelta& delta);
  void ShowCall(std::string arguments, ChatDelta& delta);
  void EndCall(ChatDelta& delta);
  void AbandonCall(ChatDelta& delta);

  OutputParserOptions options_;  // may_think_late: and no marker of reasoning has come yet
  State state_;
  std::string held_;              // what may be the start of a marker: less than one
  ToolCallReader call_;           // the one that has begun
  bool drop_whitespace_ = false;  // until other content comes: after tool-call markup
  int next_index_ = 0;            // of the next tool call
};

// `text` in parts, each of which ends behind what may be the end of a marker: what a Push of one
// adds is of one kind, or reasoning behind which content begins, and calls come in their order.
std::vector<std::string_view> PartsAtMarkers(std::string_view text);

// The parser's first state after a rendered prompt. One that ends neither inside <think> nor behind
// </think>, as after a message of the assistant's, leaves it to a model that knows these tokens
// when to think.
OutputParserOptions OptionsAfter(std::string_view rendered_prompt, bool has_think_token);

// The markers that a parser reads: where they are special tokens, they must reach it as text.
std::span<const std::string_view> OutputMarkers(bool parse_tools);

}  // namespace fathom
