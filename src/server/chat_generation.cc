#include "server/chat_generation.h"

#include <iterator>
#include <utility>

namespace fathom {

namespace json = boost::json;

ChatGeneration::ChatGeneration(GenerationSetup setup, const ChatOutputOptions& options)
    : Generation(std::move(setup),  // a reference still: nothing has moved when the name is chosen
                 setup.params.stream ? "chat.completion.chunk" : "chat.completion"),
      options_(options) {
  for (size_t i = 0; i < num_choices(); ++i) {
    messages_.push_back({.parser = OutputParser(options_.parser)});
  }
}

ChatDelta ChatGeneration::Parse(const Piece& piece) {
  OutputParser& parser = messages_[piece.choice].parser;
  ChatDelta delta = parser.Push(piece.text);
  if (piece.finish) Append(parser.Finish(), &delta);
  if (!options_.include_reasoning) delta.reasoning.clear();
  if (!options_.parallel_tool_calls) {
    std::erase_if(delta.tool_calls, [](const ToolCallDelta& call) { return call.index > 0; });
  }
  return delta;
}

const char* ChatGeneration::FinishReasonOf(const Piece& piece) const {
  const bool called = messages_[piece.choice].parser.saw_tool_calls();
  return called && piece.finish == FinishReason::kStop ? "tool_calls" : FinishName(*piece.finish);
}

void ChatGeneration::Stream(Piece piece, std::string* events) {
  if (piece.first) {
    *events += ChoiceChunk(piece.choice, {{"delta", {{"role", "assistant"}, {"content", ""}}},
                                          {"logprobs", nullptr},
                                          {"finish_reason", nullptr}});
  }
  const ChatDelta delta = Parse(piece);
  const bool logprobs = setup().params.sampling.logprobs >= 0 && !piece.tokens.empty();
  if (delta.empty() && !logprobs && !piece.finish) return;
  json::object choice = {
      {"delta", ToJson(delta)}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  if (logprobs) choice["logprobs"] = ChatLogprobs(*setup().tokenizer, piece.tokens);
  if (piece.finish) {
    choice["finish_reason"] = FinishReasonOf(piece);
    choice["stop_reason"] = std::move(piece.stop_reason);
  }
  *events += ChoiceChunk(piece.choice, std::move(choice));
}

void ChatGeneration::Collect(Piece piece) {
  Message& message = messages_[piece.choice];
  Append(Parse(piece), &message.whole);
  if (setup().params.sampling.logprobs >= 0) {
    std::move(piece.tokens.begin(), piece.tokens.end(), std::back_inserter(message.tokens));
  }
  if (!piece.finish) return;
  message.finish_reason = FinishReasonOf(piece);
  message.stop_reason = std::move(piece.stop_reason);
}

json::object ChatGeneration::Choice(size_t choice) {
  Message& message = messages_[choice];
  const ChatDelta& whole = message.whole;
  json::object fields = {{"role", "assistant"}, {"content", nullptr}, {"refusal", nullptr}};
  // Null says that there is none; an answer that is empty altogether is an empty text.
  if (whole.reasoning.empty() && whole.tool_calls.empty()) fields["content"] = "";
  fields["reasoning"] = nullptr;
  fields["reasoning_content"] = nullptr;
  for (auto& [key, value] : ToJson(whole)) fields[key] = std::move(value);
  if (json::value* calls = fields.if_contains("tool_calls")) {
    for (json::value& call : calls->get_array()) call.get_object().erase("index");
  }
  return {{"message", std::move(fields)},
          {"logprobs", setup().params.sampling.logprobs >= 0
                           ? ChatLogprobs(*setup().tokenizer, message.tokens)
                           : json::value(nullptr)},
          {"finish_reason", message.finish_reason},
          {"stop_reason", std::move(message.stop_reason)}};
}

}  // namespace fathom
