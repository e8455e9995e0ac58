#include "server/responses_request.h"

#include <algorithm>
#include <string_view>

#include "server/json_fields.h"
#include "server/responses_input.h"

namespace fathom {

namespace json = boost::json;

namespace {

// What would be another answer, with what may stand there all the same, in JSON.
void Refuse(RequestFields& fields) {
  static constexpr std::pair<const char*, const char*> kUnsupported[] = {
      {"background", "false"},     {"conversation", "null"}, {"prompt", "null"},
      {"max_tool_calls", "null"},  {"top_logprobs", "0"},    {"truncation", "\"disabled\""},
      {"context_management", "[]"}};
  for (const auto& [key, harmless] : kUnsupported) {
    const json::value* value = fields.Find(key);
    if (value == nullptr || *value == json::parse(harmless)) continue;
    fields.Fail(key, fmt::format("{} is not supported; it may only be {}", key, harmless));
  }
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
  if (const json::value* type = format->if_contains("type")) described["type"] = *type;
  for (const char* key : {"schema", "strict"}) {
    if (const json::value* value = format->if_contains(key)) schema[key] = *value;
  }
  if (!schema.empty()) described["json_schema"] = std::move(schema);
  (*chat)["response_format"] = std::move(described);
}

json::array ReadTools(RequestFields& fields, const json::storage_ptr& storage) {
  json::array tools(storage);
  const json::array* given = fields.Array("tools");
  for (size_t i = 0; given != nullptr && i < given->size() && !fields.failed(); ++i) {
    const std::string name = fmt::format("tools[{}]", i);
    const json::object* object = (*given)[i].if_object();
    if (object == nullptr) {
      fields.Fail("tools", fmt::format("{} must be an object", name));
      break;
    }
    RequestFields tool(*object, fields.error(), name);
    const std::string type = tool.String("type", "");
    if (type != "function") {
      tool.Fail("type", fmt::format("{} is {}: this server runs no tools of its own, and takes "
                                    "\"function\" alone",
                                    tool.Name("type"), Excerpt(json::value(type))));
      break;
    }
    json::object function(storage);
    for (const char* key : {"name", "description", "parameters", "strict"}) {
      if (const json::value* value = tool.Find(key)) function[key] = *value;
    }
    tools.push_back(json::object{{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

// {"type": "none"} is not OpenAI's; strings are "none", "auto" and "required".
void ReadToolChoice(RequestFields& fields, bool has_tools, json::object* chat) {
  const json::value* choice = fields.Find("tool_choice");
  if (choice == nullptr || (*choice == json::value("auto") && !has_tools)) return;
  (*chat)["tool_choice"] = *choice;
}

// In the names of the chat request's fields.
void CopyFields(RequestFields& fields, const RequestLimits& limits, json::object* chat) {
  // Those after parallel_tool_calls are vLLM's, as in a chat.
  for (const char* key :
       {"model", "temperature", "top_p", "stream", "parallel_tool_calls", "top_k", "min_p", "seed",
        "stop", "ignore_eos", "presence_penalty", "frequency_penalty", "repetition_penalty",
        "logit_bias", "chat_template_kwargs"}) {
    if (const json::value* value = fields.Find(key)) (*chat)[key] = *value;
  }
  // No answer is longer than the context: a cap above it says nothing.
  if (const auto most = fields.MaybeInteger("max_output_tokens", 1, INT32_MAX)) {
    (*chat)["max_tokens"] = std::min<int64_t>(*most, limits.max_model_len);
  }
  const json::object* reasoning = fields.Object("reasoning");
  const json::value* effort = reasoning != nullptr ? reasoning->if_contains("effort") : nullptr;
  if (effort != nullptr) (*chat)["reasoning_effort"] = *effort;
}

// The fields of a response that say what was asked.
json::object Shown(const json::object& body) {
  const auto given = [&](const char* key, json::value otherwise) {
    const json::value* value = body.if_contains(key);
    return value != nullptr && !value->is_null() ? json::value(*value, json::storage_ptr())
                                                 : otherwise;
  };
  json::value format = {{"type", "text"}};
  const json::value text = given("text", json::object());
  const json::value* own = text.is_object() ? text.get_object().if_contains("format") : nullptr;
  if (own != nullptr && !own->is_null()) format = *own;
  json::object shown = {
      {"background", false},
      {"instructions", given("instructions", nullptr)},
      {"max_output_tokens", given("max_output_tokens", nullptr)},
      {"max_tool_calls", nullptr},
      {"metadata", given("metadata", json::object())},
      {"parallel_tool_calls", given("parallel_tool_calls", true)},
      {"previous_response_id", given("previous_response_id", nullptr)},
      {"reasoning", given("reasoning", json::object{{"effort", nullptr}, {"summary", nullptr}})},
      {"service_tier", "default"},
      {"temperature", given("temperature", nullptr)},
      {"text", {{"format", format}, {"verbosity", "medium"}}},
      {"tool_choice", given("tool_choice", "auto")},
      {"tools", given("tools", json::array())},
      {"top_logprobs", 0},
      {"top_p", given("top_p", nullptr)},
      {"truncation", "disabled"},
      {"user", given("user", nullptr)}};
  for (json::value& tool : shown["tools"].get_array()) {  // clients want it said
    if (tool.is_object()) tool.get_object().emplace("strict", false);
  }
  return shown;
}

// Of what ParseChat finds wrong, in the words of this API.
void Rename(ApiError* error) {
  if (error->param == "max_tokens") error->param = "max_output_tokens";
  if (error->param == "reasoning_effort") error->param = "reasoning.effort";
  if (error->param.starts_with("messages")) error->param = "input";
  if (error->param.starts_with("response_format")) error->param = "text.format";
}

}  // namespace

std::optional<ApiError> ParseResponses(const json::object& body, const RequestLimits& limits,
                                       const std::string& earlier, ResponsesRequest* request) {
  std::optional<ApiError> error;
  RequestFields fields(body, &error);
  Refuse(fields);
  json::object chat(body.storage());
  json::array messages(body.storage());
  if (!earlier.empty()) messages = json::parse(earlier, body.storage()).get_array();
  ReadInput(fields, &messages);
  json::array tools = ReadTools(fields, body.storage());
  ReadToolChoice(fields, !tools.empty(), &chat);
  CopyFields(fields, limits, &chat);
  ReadFormat(fields, &chat);
  const std::string instructions = fields.String("instructions", "");
  fields.String("previous_response_id", "");
  request->store = fields.Bool("store", true);
  if (error) return error;
  if (request->store) request->messages = json::serialize(messages);
  request->shown = Shown(body);
  // Those of an earlier response do not go on.
  if (!instructions.empty()) {
    messages.insert(messages.begin(),
                    json::object({{"role", "system"}, {"content", instructions}}, body.storage()));
  }
  chat["messages"] = std::move(messages);
  if (!tools.empty()) chat["tools"] = std::move(tools);
  error = ParseChat(chat, limits, &request->chat);
  if (error) Rename(&*error);
  if (request->chat.params.grammar) request->chat.params.grammar->param = "text.format";
  return error;
}

}  // namespace fathom
