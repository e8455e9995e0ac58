#include "server/messages_generation.h"

#include <utility>

#include "server/json_body.h"
#include "server/messages_request.h"

namespace fathom {

namespace json = boost::json;

namespace {

// {"type": `type`, ...} as an event of that name.
std::string TypedEvent(std::string_view type, json::object fields) {
  json::object data = {{"type", type}};
  for (auto& [key, value] : fields) data[key] = std::move(value);
  return fmt::format("event: {}\ndata: {}\n\n", type, json::serialize(data));
}

// What a model writes as arguments may be no JSON, above all if it was cut off.
json::object InputOf(const std::string& arguments) {
  boost::system::error_code error;
  json::value parsed =
      json::parse(arguments.empty() ? "{}" : arguments, error, {}, {.max_depth = kMaxJsonDepth});
  if (!error && parsed.is_object()) return std::move(parsed.get_object());
  return {{"INVALID_JSON", arguments}};
}

}  // namespace

void MessagesGeneration::OnBegin(std::string* events) {
  *events += TypedEvent("message_start", {{"message", Message()}});
  *events += TypedEvent("ping", {});
}

void MessagesGeneration::OnOpen(const Block& block, std::string* events) {
  json::object begun;
  switch (block.kind) {
    case Kind::kThinking:
      begun = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
      break;
    case Kind::kText: begun = {{"type", "text"}, {"text", ""}, {"citations", nullptr}}; break;
    case Kind::kCall:
      begun = {
          {"type", "tool_use"}, {"id", block.id}, {"name", block.name}, {"input", json::object()}};
      break;
  }
  *events += TypedEvent("content_block_start",
                        {{"index", blocks().size() - 1}, {"content_block", std::move(begun)}});
}

void MessagesGeneration::OnText(const Block& block, std::string_view text, std::string* events) {
  json::object delta;
  switch (block.kind) {
    case Kind::kThinking: delta = {{"type", "thinking_delta"}, {"thinking", text}}; break;
    case Kind::kText: delta = {{"type", "text_delta"}, {"text", text}}; break;
    case Kind::kCall: delta = {{"type", "input_json_delta"}, {"partial_json", text}}; break;
  }
  *events += TypedEvent("content_block_delta",
                        {{"index", blocks().size() - 1}, {"delta", std::move(delta)}});
}

void MessagesGeneration::OnClose(const Block& block, std::string* events) {
  const size_t index = blocks().size() - 1;
  if (block.kind == Kind::kThinking) {
    *events +=
        TypedEvent("content_block_delta",
                   {{"index", index}, {"delta", {{"type", "signature_delta"}, {"signature", ""}}}});
  }
  *events += TypedEvent("content_block_stop", {{"index", index}});
}

json::object MessagesGeneration::UsageJson() const {
  const Usage all = usage();
  // Those of the cache are counted beside the others, as Anthropic does.
  return {{"input_tokens", all.prompt_tokens - all.cached_tokens},
          {"output_tokens", all.completion_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", all.cached_tokens},
          {"output_tokens_details", {{"thinking_tokens", all.reasoning_tokens.value_or(0)}}}};
}

json::object MessagesGeneration::Stop() const {
  json::object stop = {{"stop_reason", nullptr}, {"stop_sequence", nullptr}};
  if (!finish()) return stop;
  if (finish() == FinishReason::kLength) {
    stop["stop_reason"] = "max_tokens";
  } else if (stop_reason().is_string()) {
    stop["stop_reason"] = "stop_sequence";
    stop["stop_sequence"] = stop_reason();
  } else {
    stop["stop_reason"] = ended_in_calls() ? "tool_use" : "end_turn";
  }
  return stop;
}

json::object MessagesGeneration::Message() const {
  json::array content;
  for (const Block& block : blocks()) {
    switch (block.kind) {
      case Kind::kThinking:
        content.push_back(
            json::object{{"type", "thinking"}, {"thinking", block.text}, {"signature", ""}});
        break;
      case Kind::kText:
        content.push_back(
            json::object{{"type", "text"}, {"text", block.text}, {"citations", nullptr}});
        break;
      case Kind::kCall:
        content.push_back(json::object{{"type", "tool_use"},
                                       {"id", block.id},
                                       {"name", block.name},
                                       {"input", InputOf(block.text)}});
        break;
    }
  }
  json::object message = {{"id", setup().id},
                          {"type", "message"},
                          {"role", "assistant"},
                          {"model", setup().model},
                          {"content", std::move(content)}};
  for (auto& [key, value] : Stop()) message[key] = std::move(value);
  message["usage"] = UsageJson();
  return message;
}

std::string MessagesGeneration::LastEvents() {
  return TypedEvent("message_delta", {{"delta", Stop()}, {"usage", UsageJson()}}) +
         TypedEvent("message_stop", {});
}

std::string MessagesGeneration::ErrorEvents() {
  return fmt::format("event: error\ndata: {}\n\n", json::serialize(MessagesError(*error())));
}

Result<std::string> MessagesGeneration::Body(const WorkLimits&) {
  return json::serialize(Message());
}

}  // namespace fathom
