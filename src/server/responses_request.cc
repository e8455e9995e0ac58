#include "server/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <string_view>
#include <utility>

#include "server/chat_words.h"
#include "server/json_body.h"
#include "server/json_fields.h"
#include "server/responses_input.h"
#include "server/unsupported_fields.h"

namespace fathom {

namespace json = boost::json;

namespace {

// What would be another answer.
void Refuse(RequestFields& fields) {
  static constexpr UnsupportedField kUnsupported[] = {
      {"background", "[false]"},
      {"conversation", "[]"},
      {"prompt", "[]"},
      {"max_tool_calls", "[]"},
      {"truncation", R"(["disabled"])", "say truncate_prompt_tokens"},
      {"context_management", "[]"},
      // vLLM's.
      {"previous_input_messages", "[]", "say previous_response_id, or input"},
      {"previous_response", "[]", "say previous_response_id, or input"},
      {"enable_response_messages", "[false]"},
      // A chat's names of what is there by another.
      {"messages", "[]", "say input"},
      {"max_tokens", "[]", "say max_output_tokens"},
      {"max_completion_tokens", "[]", "say max_output_tokens"},
      {"response_format", "[]", "say text.format"},
  };
  RefuseFields(fields, kUnsupported);
  const json::array* include = fields.Array("include");
  for (size_t i = 0; include != nullptr && i < include->size(); ++i) {
    // There is nothing to encrypt: an answer shows its reasoning.
    if ((*include)[i] == json::value("reasoning.encrypted_content")) continue;
    fields.Fail("include", fmt::format("include: {} is not supported", Excerpt((*include)[i])));
  }
  const json::object* text = fields.Object("text");
  if (text == nullptr) return;
  RequestFields inner(*text, fields.error(), "text");
  if (inner.String("verbosity", "medium") != "medium") {
    inner.Fail("verbosity", "text.verbosity is not supported; it may only be \"medium\"");
  }
}

// text.format, which says a schema beside its type, as chat's response_format.
void ReadFormat(RequestFields& fields, json::object* chat) {
  const json::object* text = fields.Object("text");
  if (text == nullptr) return;
  RequestFields inner(*text, fields.error(), "text");
  const json::object* format = inner.Object("format");
  if (format == nullptr) return;
  json::object described(chat->storage()), schema(chat->storage());
  for (const auto& [key, value] : *format) {
    const bool of_schema =
        key == "name" || key == "description" || key == "schema" || key == "strict";
    (of_schema ? schema : described)[key] = value;
  }
  if (format->if_contains("type") != nullptr && format->at("type") == json::value("json_schema")) {
    described["json_schema"] = std::move(schema);
  }
  (*chat)["response_format"] = std::move(described);
}

// Frees those of `body` that are read. `shown`: what an answer repeats of them, a list of JSON.
json::array ReadTools(RequestFields& fields, json::object& body, std::string* shown) {
  const json::storage_ptr& storage = body.storage();
  json::array tools(storage);
  fields.TakeObjects(body, "tools", [&](RequestFields& tool, json::object& own) {
    const std::string type = tool.String("type", "");
    if (type != "function") {
      tool.Fail("type", fmt::format("{} is {}: this server runs no tools of its own, and takes "
                                    "\"function\" alone",
                                    tool.Name("type"), Excerpt(json::value(type))));
      return;
    }
    json::object function(storage);
    function.reserve(own.size() - 1);  // of its members all but the type
    for (const char* key : {"name", "description", "parameters", "strict"}) {
      if (const json::value* value = tool.Find(key)) function[key] = *value;
    }
    tools.push_back(
        json::object({{"type", "function"}, {"function", std::move(function)}}, storage));
    shown->append(shown->size() > 1 ? "," : "").append(json::serialize(own));
    if (!own.contains("strict")) {  // clients want it to be said
      shown->back() = ',';
      shown->append(R"("strict":false})");
    }
  });
  shown->append("]");
  return tools;
}

// {"type": "none"} is not OpenAI's; strings are "none", "auto" and "required".
void ReadToolChoice(RequestFields& fields, bool has_tools, json::object* chat) {
  const json::value* choice = fields.Find("tool_choice");
  if (choice == nullptr || (*choice == json::value("auto") && !has_tools)) return;
  (*chat)["tool_choice"] = *choice;
}

// The fields of a response that say what was asked, but for those of sampling.
std::optional<ApiError> Show(const json::object& body, const std::string& tools,
                             const WorkLimits& work, std::string* shown) {
  *shown = R"("background":false,"max_tool_calls":null,"service_tier":"default",)"
           R"("top_logprobs":0,"truncation":"disabled")";
  std::optional<ApiError> error;
  const auto add = [&](const char* key, const json::value* value, const char* otherwise) {
    shown->append(fmt::format(R"(,"{}":)", key));
    if (value == nullptr || value->is_null()) {
      shown->append(otherwise);
    } else if (!error) {
      error = AppendJson(*value, work, shown);
    }
  };
  for (const auto& [key, otherwise] : {std::pair("instructions", "null"),
                                       {"max_output_tokens", "null"},
                                       {"metadata", "{}"},
                                       {"parallel_tool_calls", "true"},
                                       {"previous_response_id", "null"},
                                       {"reasoning", R"({"effort":null,"summary":null})"},
                                       {"tool_choice", R"("auto")"},
                                       {"user", "null"}}) {
    add(key, body.if_contains(key), otherwise);
  }
  const json::value* text = body.if_contains("text");
  const json::value* format =
      text != nullptr && text->is_object() ? text->get_object().if_contains("format") : nullptr;
  shown->append(R"(,"text":{"verbosity":"medium")");
  add("format", format, R"({"type":"text"})");
  shown->append(R"(},"tools":)").append(tools);
  return error;
}

constexpr std::pair<std::string_view, std::string_view> kWords[] = {
    {"response_format.json_schema", "text.format"},
    {"response_format", "text.format"},
    {"max_tokens", "max_output_tokens"},
    {"messages", "input"},
    {"].function", "]"}};

}  // namespace

json::array EarlierMessages(std::string_view text, size_t body_bytes, const WorkLimits& limits,
                            const json::storage_ptr& storage) {
  if (limits.memory != nullptr) {
    limits.memory->RaiseLimit(MaxRequestMemory(body_bytes + text.size()) -
                              MaxRequestMemory(body_bytes));
  }
  if (!limits.Take(text.size()).ok()) throw std::bad_alloc();  // NOLINT: MemoryError's
  json::value messages = ParseAgain(text, storage);
  if (limits.memory != nullptr) limits.memory->Shrink(text.size());
  return std::move(messages.get_array());
}

std::optional<ApiError> ParseResponses(json::object body, const RequestLimits& limits,
                                       json::array earlier, ResponsesRequest* request,
                                       const WorkLimits& work) {
  std::optional<ApiError> error;
  RequestFields fields(body, &error);
  Refuse(fields);
  json::object chat(body.storage());
  TakeChatFields(fields, body,
                 {"input", "instructions", "tools", "tool_choice", "text", "include", "store",
                  "previous_response_id", "max_output_tokens", "prompt", "truncation"},
                 &chat);
  // No answer is longer than the context: a cap above it says nothing.
  if (const auto most = fields.MaybeInteger("max_output_tokens", 1, INT32_MAX)) {
    chat["max_tokens"] = std::min<int64_t>(*most, limits.max_model_len);
  }
  json::array messages(std::move(earlier), body.storage());
  ReadInput(fields, body, &messages);
  std::string shown_tools = "[";
  json::array tools = ReadTools(fields, body, &shown_tools);
  ReadToolChoice(fields, !tools.empty(), &chat);
  ReadFormat(fields, &chat);
  const std::string instructions = fields.String("instructions", "");
  fields.String("previous_response_id", "");
  request->store = fields.Bool("store", true);
  if (error) return error;
  json::value conversation = std::move(messages);
  if (request->store) error = AppendJson(conversation, work, &request->messages);
  if (!error) error = Show(body, shown_tools, work, &request->shown);
  if (error) return error;
  messages = std::move(conversation.get_array());
  // Those of an earlier response do not go on.
  if (!instructions.empty()) {
    messages.insert(messages.begin(),
                    json::object({{"role", "system"}, {"content", instructions}}, body.storage()));
  }
  chat["messages"] = std::move(messages);
  if (!tools.empty()) chat["tools"] = std::move(tools);
  error = ParseChat(std::move(chat), limits, &request->chat);
  auto& grammar = request->chat.params.grammar;
  if (grammar) grammar->param = Reworded(grammar->param, kWords);
  if (error) return InWordsOfResponses(std::move(*error));
  return error;
}

ApiError InWordsOfResponses(ApiError error) {
  return Reworded(std::move(error), kWords);
}

}  // namespace fathom
