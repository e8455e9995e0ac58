#include "server/responses_generation.h"

#include <utility>

#include "server/responses_input.h"

namespace fathom {

namespace json = boost::json;

namespace {

// A part of an item's content: of a message, or of reasoning.
json::object Part(bool reasoning, std::string_view text) {
  if (reasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", json::array()},
          {"logprobs", json::array()}};
}

}  // namespace

ResponsesGeneration::ResponsesGeneration(GenerationSetup setup, const ChatOutputOptions& options,
                                         ResponseContext context)
    : BlockGeneration(std::move(setup), options, "response"), context_(std::move(context)) {
  if (context_.store == nullptr) return;
  context_.store->Put({.owner = context_.owner,
                       .id = this->setup().id,
                       .response = Response("in_progress"),
                       .messages = "",
                       .cancel = cancel_});
}

// One that did not end is not there to be asked for.
ResponsesGeneration::~ResponsesGeneration() {
  if (context_.store != nullptr && !kept_) context_.store->Erase(context_.owner, setup().id);
}

std::string ResponsesGeneration::TypedEvent(std::string_view type, json::object fields,
                                            bool of_block) {
  json::object data = {{"type", type}, {"sequence_number", sequence_++}};
  if (of_block) {
    const size_t index = blocks().size() - 1;
    data["output_index"] = index;
    data["item_id"] = ItemId(blocks().back(), index);
    if (blocks().back().kind != Kind::kCall) data["content_index"] = 0;
  }
  for (auto& [key, value] : fields) data[key] = std::move(value);
  return fmt::format("event: {}\ndata: {}\n\n", type, json::serialize(data));
}

void ResponsesGeneration::AddResponseEvent(std::string_view type, std::string_view response,
                                           std::string* events) {
  events->reserve(events->size() + response.size() + 256);
  events->append(fmt::format(R"(event: {0}
data: {{"type":"{0}","sequence_number":{1},"response":)",
                             type, sequence_++));
  events->append(response).append("}\n\n");
}

std::string ResponsesGeneration::ItemId(const Block& block, size_t index) const {
  const char* prefix = block.kind == Kind::kThinking ? "rs"
                       : block.kind == Kind::kText   ? "msg"
                                                     : "fc";
  const std::string& id = setup().id;
  return fmt::format("{}_{}_{}", prefix, id.substr(id.find('_') + 1), index);
}

json::object ResponsesGeneration::Item(const Block& block, size_t index, const char* status) const {
  const std::string id = ItemId(block, index);
  const bool begun = status == std::string_view("in_progress");
  json::array content;
  if (!begun) content.push_back(Part(block.kind == Kind::kThinking, block.text));
  switch (block.kind) {
    case Kind::kThinking:
      return {{"id", id},
              {"type", "reasoning"},
              {"summary", json::array()},
              {"content", std::move(content)},
              {"encrypted_content", nullptr},
              {"status", status}};
    case Kind::kText:
      return {{"id", id},
              {"type", "message"},
              {"role", "assistant"},
              {"content", std::move(content)},
              {"status", status}};
    case Kind::kCall: break;
  }
  return {{"id", id},
          {"type", "function_call"},
          {"call_id", block.id},
          {"name", block.name},
          {"arguments", begun ? "" : block.text},
          {"status", status}};
}

const char* ResponsesGeneration::Status() const {
  if (error()) return "failed";
  if (finish() == FinishReason::kCancelled) return "cancelled";
  return finish() == FinishReason::kLength ? "incomplete" : "completed";
}

std::string ResponsesGeneration::Response(const char* status) const {
  const bool ended = status != std::string_view("in_progress");
  const bool whole = status == std::string_view("completed");
  json::array output;
  for (size_t i = 0; ended && i < blocks().size(); ++i) {
    const bool cut = !whole && i + 1 == blocks().size();
    output.push_back(Item(blocks()[i], i, cut ? "incomplete" : "completed"));
  }
  json::object response = {{"object", "response"},          {"created_at", created()},
                           {"model", setup().model},        {"error", nullptr},
                           {"incomplete_details", nullptr}, {"usage", nullptr}};
  if (error()) {
    response["error"] = json::object{{"code", "server_error"}, {"message", error()->message}};
  }
  if (finish() == FinishReason::kLength) {
    response["incomplete_details"] = json::object{{"reason", "max_output_tokens"}};
  }
  if (ended) {
    const Usage all = usage();
    response["usage"] = json::object{
        {"input_tokens", all.prompt_tokens},
        {"input_tokens_details", {{"cached_tokens", all.cached_tokens}, {"cache_write_tokens", 0}}},
        {"output_tokens", all.completion_tokens},
        {"output_tokens_details", {{"reasoning_tokens", all.reasoning_tokens.value_or(0)}}},
        {"total_tokens", all.total_tokens()}};
  }
  // What was asked, and the answer, may be large: they are text, and no JSON beside it.
  const std::string written = json::serialize(output), rest = json::serialize(response);
  std::string text = fmt::format(R"({{"id":"{}","status":"{}",)", setup().id, status);
  text.reserve(text.size() + context_.sampling.size() + context_.shown.size() + written.size() +
               rest.size() + 16);
  text.append(context_.sampling).append(context_.shown).append(R"(,"output":)").append(written);
  return std::move(text.append(",").append(rest, 1));
}

std::string ResponsesGeneration::Finished() {
  std::string response = Response(Status());
  if (context_.store == nullptr) return response;
  AssistantMessage answer;
  for (const Block& block : blocks()) {
    switch (block.kind) {
      case Kind::kThinking: answer.reasoning += block.text; break;
      case Kind::kText: answer.content += block.text; break;
      case Kind::kCall: answer.calls.push_back({block.id, block.name, block.text}); break;
    }
  }
  // As text: a conversation may be long, and is not looked at here. It is not empty.
  std::string messages = std::move(context_.messages);
  messages.back() = ',';
  messages.append(json::serialize(ToChat(answer))).append("]");
  context_.store->Put({.owner = context_.owner,
                       .id = setup().id,
                       .response = response,
                       .messages = std::move(messages),
                       .cancel = nullptr});
  kept_ = true;
  return response;
}

void ResponsesGeneration::OnBegin(std::string* events) {
  const std::string response = Response("in_progress");
  events->reserve(events->size() + 2 * response.size() + 256);
  AddResponseEvent("response.created", response, events);
  AddResponseEvent("response.in_progress", response, events);
}

void ResponsesGeneration::OnOpen(const Block& block, std::string* events) {
  const size_t index = blocks().size() - 1;
  *events += TypedEvent("response.output_item.added",
                        {{"output_index", index}, {"item", Item(block, index, "in_progress")}});
  if (block.kind == Kind::kCall) return;
  *events += TypedEvent("response.content_part.added",
                        {{"part", Part(block.kind == Kind::kThinking, "")}}, /*of_block=*/true);
}

void ResponsesGeneration::OnText(const Block& block, std::string_view text, std::string* events) {
  switch (block.kind) {
    case Kind::kThinking:
      *events += TypedEvent("response.reasoning_text.delta", {{"delta", text}}, true);
      return;
    case Kind::kText:
      *events += TypedEvent("response.output_text.delta",
                            {{"delta", text}, {"logprobs", json::array()}}, true);
      return;
    case Kind::kCall:
      *events += TypedEvent("response.function_call_arguments.delta", {{"delta", text}}, true);
      return;
  }
}

void ResponsesGeneration::OnClose(const Block& block, std::string* events) {
  const size_t index = blocks().size() - 1;
  switch (block.kind) {
    case Kind::kThinking:
      *events += TypedEvent("response.reasoning_text.done", {{"text", block.text}}, true);
      break;
    case Kind::kText:
      *events += TypedEvent("response.output_text.done",
                            {{"text", block.text}, {"logprobs", json::array()}}, true);
      break;
    case Kind::kCall:
      *events += TypedEvent("response.function_call_arguments.done",
                            {{"arguments", block.text}, {"name", block.name}}, true);
      break;
  }
  if (block.kind != Kind::kCall) {
    *events += TypedEvent("response.content_part.done",
                          {{"part", Part(block.kind == Kind::kThinking, block.text)}}, true);
  }
  const bool cut = finish() && finish() != FinishReason::kStop;
  *events += TypedEvent(
      "response.output_item.done",
      {{"output_index", index}, {"item", Item(block, index, cut ? "incomplete" : "completed")}});
}

std::string ResponsesGeneration::LastEvents() {
  const bool whole = Status() == std::string_view("completed");
  std::string events;
  AddResponseEvent(whole ? "response.completed" : "response.incomplete", Finished(), &events);
  return events;
}

std::string ResponsesGeneration::ErrorEvents() {
  std::string events;
  AddResponseEvent("response.failed", Response("failed"), &events);
  return events;
}

Result<std::string> ResponsesGeneration::Body(const WorkLimits&) {
  return Finished();
}

std::string CancelledResponse(const std::string& response) {
  constexpr std::string_view kRunning = R"("status":"in_progress")";
  std::string cancelled = response;
  return cancelled.replace(response.find(kRunning), kRunning.size(), R"("status":"cancelled")");
}

}  // namespace fathom
