#include "server/chat_generation.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace fathom {

namespace json = boost::json;

ChatGeneration::ChatGeneration(GenerationSetup setup, const ChatOutputOptions& options)
    : Generation(std::move(setup),  // a reference still: nothing has moved when the name is chosen
                 setup.params.stream ? "chat.completion.chunk" : "chat.completion"),
      options_(options) {
  for (size_t i = 0; i < num_choices(); ++i) {
    messages_.push_back({.parser = OutputParser(options_.parser),
                         .meter = ReasoningMeter(*this->setup().tokenizer)});
  }
}

ChatDelta ChatGeneration::Parse(Piece* piece) {
  Message& message = messages_[piece->choice];
  ChatDelta delta;
  message.meter.Begin(message.parser.in_reasoning());
  for (const std::string_view part : PartsAtMarkers(piece->text)) {
    Append(message.parser.Push(part), &delta);
    message.meter.Pass(message.parser.in_reasoning());
  }
  if (piece->finish) Append(message.parser.Finish(), &delta);
  const auto [from, to] = message.meter.End(piece->tokens);
  if (!options_.include_reasoning) {
    delta.reasoning.clear();
    const auto tokens = piece->tokens.begin();  // nor their log-probabilities
    piece->tokens.erase(tokens + static_cast<ptrdiff_t>(from), tokens + static_cast<ptrdiff_t>(to));
  }
  if (!options_.parallel_tool_calls) {
    std::erase_if(delta.tool_calls, [](const ToolCallDelta& call) { return call.index > 0; });
  }
  return delta;
}

bool EndedInCalls(const OutputParser& parser, FinishReason finish, const json::value& stop_reason,
                  bool held) {
  if (!parser.saw_tool_calls() || finish != FinishReason::kStop) return false;
  return stop_reason.is_null() || (!held && !parser.in_call());
}

const char* ChatGeneration::FinishReasonOf(const Piece& piece) const {
  return EndedInCalls(messages_[piece.choice].parser, *piece.finish, piece.stop_reason,
                      asked_grammar().has_value())
             ? "tool_calls"
             : FinishName(*piece.finish);
}

Status ChatGeneration::WriteLogprobs(std::span<const GeneratedToken> tokens,
                                     const WorkLimits& limits, std::string* text) const {
  return AddChatLogprobs(names(), tokens, !setup().params.sampling.logprob_token_ids.empty(),
                         limits, text);
}

void ChatGeneration::Stream(Piece piece, std::string* events, const WorkLimits& limits) {
  if (piece.first) {
    json::object more;
    if (returns_token_ids()) more["prompt_token_ids"] = TokenIds(prompt(piece.choice).tokens);
    json::object begun = {{"delta", {{"role", "assistant"}, {"content", options_.echoed}}},
                          {"finish_reason", nullptr}};
    if (returns_token_ids()) begun["token_ids"] = json::array();
    *events += ChoiceChunk(piece.choice, std::move(begun), "null", std::move(more));
  }
  const ChatDelta delta = Parse(&piece);
  const bool shown = setup().params.sampling.logprobs >= 0 && !piece.tokens.empty();
  if (delta.empty() && !shown && !piece.finish) return;
  std::string logprobs = shown ? "" : "null";
  if (shown && !WriteLogprobs(piece.tokens, limits, &logprobs).ok()) return;
  json::object choice = {{"delta", ToJson(delta)}, {"finish_reason", nullptr}};
  if (piece.finish) {
    choice["finish_reason"] = FinishReasonOf(piece);
    choice["stop_reason"] = std::move(piece.stop_reason);
  }
  AddNewTokenIds(piece.choice, &choice);
  *events += ChoiceChunk(piece.choice, std::move(choice), logprobs);
}

void ChatGeneration::Collect(Piece piece) {
  Message& message = messages_[piece.choice];
  if (piece.first && piece.choice == 0) prompt_logprobs_ = std::move(piece.prompt_logprobs);
  Append(Parse(&piece), &message.whole);
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
  json::object fields = {{"role", "assistant"}, {"content", nullptr},
                         {"refusal", nullptr},  {"annotations", nullptr},
                         {"audio", nullptr},    {"function_call", nullptr}};
  // Null says that there is none; an answer that is empty altogether is an empty text.
  if (whole.reasoning.empty() && whole.tool_calls.empty()) fields["content"] = "";
  fields["reasoning"] = nullptr;
  fields["reasoning_content"] = nullptr;
  for (auto& [key, value] : ToJson(whole)) fields[key] = std::move(value);
  if (!options_.echoed.empty()) fields["content"] = options_.echoed + whole.content;
  if (json::value* calls = fields.if_contains("tool_calls")) {
    for (json::value& call : calls->get_array()) call.get_object().erase("index");
  }
  return {{"message", std::move(fields)},
          {"finish_reason", message.finish_reason},
          {"stop_reason", std::move(message.stop_reason)}};
}

Status ChatGeneration::AddLogprobs(size_t choice, const WorkLimits& limits, std::string* body) {
  if (setup().params.sampling.logprobs < 0) return Generation::AddLogprobs(choice, limits, body);
  return WriteLogprobs(std::exchange(messages_[choice].tokens, {}), limits, body);
}

// As vLLM's.
Status ChatGeneration::AddTail(const WorkLimits& limits, std::string* body) {
  body->append(R"(,"prompt_logprobs":)");
  TRY(AddPromptLogprobs(*setup().tokenizer, prompt(0).tokens, prompt_logprobs_,
                        setup().params.prompt_logprobs, limits, body));
  body->append(R"(,"prompt_token_ids":)");
  body->append(returns_token_ids() ? json::serialize(TokenIds(prompt(0).tokens)) : "null");
  body->append(R"(,"kv_transfer_params":null)");
  return {};
}

size_t ChatGeneration::FirstBytes(size_t choice) const {
  return options_.echoed.size() + TokenIdBytes(choice);
}

// What all choices have in common stands once.
size_t ChatGeneration::PromptBytes(size_t choice) const {
  const size_t once = TokenIdBytes(choice) +
                      LogprobsBytes(prompt(choice).tokens.size(), setup().params.prompt_logprobs);
  return options_.echoed.size() + (choice == 0 ? once : 0);
}

std::optional<int64_t> ChatGeneration::ReasoningTokens() const {
  int64_t all = 0;
  for (const Message& message : messages_) all += message.meter.tokens();
  return all;
}

}  // namespace fathom
