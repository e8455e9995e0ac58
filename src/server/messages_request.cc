#include "server/messages_request.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "server/chat_words.h"
#include "server/json_fields.h"
#include "server/routes.h"
#include "server/unsupported_fields.h"

namespace fathom {

namespace json = boost::json;

namespace {

json::object TextPart(json::value text) {
  const json::storage_ptr storage = text.storage();
  return json::object({{"type", "text"}, {"text", std::move(text)}}, storage);
}

// `own`, which `block` reads.
json::object TextPart(RequestFields& block, json::object& own) {
  json::value* text = own.if_contains("text");
  if (text != nullptr && text->is_string()) return TextPart(TakeText(*text, own.storage()));
  return TextPart(json::value(block.RequiredString("text"), own.storage()));  // says what is wrong
}

// The blocks of a content of `own`, which `holder` reads; it may be a plain string. Each is freed
// once it was read.
template <class Read>
void ForEachBlock(RequestFields& holder, json::object& own, const char* key, Read read) {
  const json::value* content = holder.Find(key);
  if (content == nullptr) return;
  if (content->is_string()) {
    json::object block = TextPart(TakeText(own.at(key), own.storage()));
    RequestFields fields(block, holder.error(), holder.Name(key));
    return read(fields, block, std::string("text"));
  }
  holder.TakeObjects(own, key, [&](RequestFields& block, json::object& of_block) {
    read(block, of_block, block.String("type", ""));
  });
}

void RefuseBlock(RequestFields& block, const std::string& type) {
  block.Fail("type", fmt::format("{} is {}; this model reads text, tool_use, tool_result "
                                 "and thinking",
                                 block.Name("type"), Excerpt(json::value(type))));
}

// Text alone, as of a system prompt or a tool's result.
json::array ReadTexts(RequestFields& holder, json::object& own, const char* key) {
  json::array parts(holder.storage());
  const auto read = [&](RequestFields& block, json::object& of_block, const std::string& type) {
    if (type != "text") return RefuseBlock(block, type);
    parts.push_back(TextPart(block, of_block));
  };
  ForEachBlock(holder, own, key, read);
  return parts;
}

// The calls of the assistant's last turn, by their ids.
using Calls = std::set<std::string, std::less<>>;

std::string ReadCallId(RequestFields& result, const Calls& calls) {
  std::string id = result.RequiredString("tool_use_id");
  if (!calls.contains(id)) {
    result.Fail("tool_use_id",
                fmt::format("{} is {}: no tool_use of the assistant's message before has that id",
                            result.Name("tool_use_id"), Excerpt(json::value(id))));
  }
  return id;
}

// A message whose content is a string: most are, and need no parts.
bool PushText(RequestFields& message, json::object& own, const char* role, json::array* messages) {
  const json::value* whole = message.Find("content");
  if (whole == nullptr || !whole->is_string()) return false;
  const json::storage_ptr& storage = messages->storage();
  json::value text = TakeText(own.at("content"), storage);
  messages->push_back(json::object({{"role", role}, {"content", std::move(text)}}, storage));
  return true;
}

// One message of a user may be several: results of tools have messages of their own.
void ReadUser(RequestFields& message, json::object& own, const Calls& calls,
              json::array* messages) {
  const json::storage_ptr& storage = messages->storage();
  if (PushText(message, own, "user", messages)) return;
  const size_t before = messages->size();
  json::array texts(storage);
  const auto flush = [&] {
    if (texts.empty()) return;
    messages->push_back(json::object({{"role", "user"}, {"content", std::move(texts)}}, storage));
    texts = json::array(storage);
  };
  const auto read = [&](RequestFields& block, json::object& of_block, const std::string& type) {
    if (type == "text") {
      texts.push_back(TextPart(block, of_block));
    } else if (type == "tool_result") {
      flush();
      json::array result = ReadTexts(block, of_block, "content");
      if (result.empty()) result.push_back(TextPart(json::value("", storage)));
      messages->push_back(json::object({{"role", "tool"},
                                        {"tool_call_id", ReadCallId(block, calls)},
                                        {"content", std::move(result)}},
                                       storage));
    } else {
      RefuseBlock(block, type);
    }
  };
  ForEachBlock(message, own, "content", read);
  flush();
  if (messages->size() == before) {
    message.Fail("content", message.Name("content") + " must not be empty");
  }
}

void ReadAssistant(RequestFields& message, json::object& own, Calls* made, json::array* messages) {
  const json::storage_ptr& storage = messages->storage();
  if (PushText(message, own, "assistant", messages)) return;
  json::array texts(storage), calls(storage);
  std::string thinking;
  const auto read = [&](RequestFields& block, json::object& of_block, const std::string& type) {
    if (type == "text") {
      texts.push_back(TextPart(block, of_block));
    } else if (type == "thinking") {
      thinking += block.RequiredString("thinking");
    } else if (type == "tool_use") {
      const json::object* input = block.Object("input");
      made->insert(block.RequiredString("id"));
      json::object function(
          {{"name", block.RequiredString("name")},
           {"arguments", input != nullptr ? json::serialize(*input) : std::string("{}")}},
          storage);
      calls.push_back(json::object({{"id", block.RequiredString("id")},
                                    {"type", "function"},
                                    {"function", std::move(function)}},
                                   storage));
    } else if (type != "redacted_thinking") {  // which nobody here can read
      RefuseBlock(block, type);
    }
  };
  ForEachBlock(message, own, "content", read);
  json::object result({{"role", "assistant"}}, storage);
  if (!texts.empty()) result["content"] = std::move(texts);
  if (!thinking.empty()) result["reasoning"] = thinking;
  if (!calls.empty()) result["tool_calls"] = std::move(calls);
  messages->push_back(std::move(result));
}

// Frees those of `body` that are read.
json::array ReadMessages(RequestFields& fields, json::object& body) {
  json::array messages(body.storage());
  json::array system = ReadTexts(fields, body, "system");
  if (!system.empty()) {
    messages.push_back(
        json::object({{"role", "system"}, {"content", std::move(system)}}, body.storage()));
  }
  const json::array* given = fields.Array("messages");
  if (given == nullptr || given->empty()) {
    fields.Fail("messages", "messages is required: a list of at least one message");
    return messages;
  }
  Calls calls;
  std::string before;  // the role
  messages.reserve(messages.size() + given->size());
  fields.TakeObjects(body, "messages", [&](RequestFields& message, json::object& own) {
    const std::string role = message.String("role", "");
    if (message.Find("content") == nullptr) {
      message.Fail("content", message.Name("content") + " is required");
    } else if (role == "user") {
      ReadUser(message, own, calls, &messages);
    } else if (role == "assistant") {
      if (before == "user") calls.clear();
      ReadAssistant(message, own, &calls, &messages);
    } else if (role == "system") {
      messages.push_back(json::object(
          {{"role", role}, {"content", ReadTexts(message, own, "content")}}, body.storage()));
    } else {
      message.Fail("role",
                   fmt::format("{} must be \"user\" or \"assistant\"", message.Name("role")));
    }
    if (role != "system") before = role;
  });
  if (before.empty()) fields.Fail("messages", "messages must hold one of the user's");
  return messages;
}

// Frees those of `body` that are read.
json::array ReadTools(RequestFields& fields, json::object& body) {
  const json::storage_ptr& storage = body.storage();
  json::array tools(storage);
  fields.TakeObjects(body, "tools", [&](RequestFields& tool, json::object&) {
    const std::string type = tool.String("type", "custom");
    if (type != "custom") {
      tool.Fail("type", fmt::format("{} is {}: this server runs no tools of its own; describe it "
                                    "with name and input_schema",
                                    tool.Name("type"), Excerpt(json::value(type))));
    }
    json::object function(storage);
    function.reserve(3);
    function["name"] = tool.RequiredString("name");
    function["description"] = tool.String("description", "");
    if (tool.Find("input_schema") == nullptr) {
      tool.Fail("input_schema", tool.Name("input_schema") + " is required");
    }
    if (const json::object* schema = tool.Object("input_schema")) function["parameters"] = *schema;
    if (tool.Bool("strict", false)) function["strict"] = true;
    tools.push_back(
        json::object({{"type", "function"}, {"function", std::move(function)}}, storage));
  });
  return tools;
}

void ReadToolChoice(RequestFields& fields, bool has_tools, json::object* chat) {
  const json::object* object = fields.Object("tool_choice");
  if (object == nullptr) return;
  RequestFields choice(*object, fields.error(), "tool_choice");
  const std::string type = choice.String("type", "");
  if (type == "none" || (type == "auto" && has_tools)) {
    (*chat)["tool_choice"] = type;
  } else if (type == "any") {
    (*chat)["tool_choice"] = "required";
  } else if (type == "tool") {
    (*chat)["tool_choice"] = {{"type", "function"},
                              {"function", {{"name", choice.RequiredString("name")}}}};
  } else if (type != "auto") {
    choice.Fail("type", fmt::format("tool_choice.type is {}: it may be \"auto\", \"any\", "
                                    "\"tool\" or \"none\"",
                                    Excerpt(json::value(type))));
  }
  (*chat)["parallel_tool_calls"] = !choice.Bool("disable_parallel_tool_use", false);
}

// What is none of the text's business, or would be another answer.
void Refuse(RequestFields& fields) {
  static constexpr UnsupportedField kUnsupported[] = {
      {"container", "[]"},
      {"mcp_servers", "[]"},
      {"speed", "[]"},
      // A chat's names of what is there by another.
      {"stop", "[]", "say stop_sequences"},
      {"max_completion_tokens", "[]", "say max_tokens"},
      {"response_format", "[]", "say output_config.format"},
      {"reasoning", "[]", "say thinking, and output_config.effort"},
      {"reasoning_effort", "[]", "say thinking, and output_config.effort"},
      {"parallel_tool_calls", "[true]", "say tool_choice.disable_parallel_tool_use"},
  };
  RefuseFields(fields, kUnsupported);
  if (const json::object* management = fields.Object("context_management")) {
    RequestFields inner(*management, fields.error(), "context_management");
    const json::array* edits = inner.Array("edits");
    for (size_t i = 0; edits != nullptr && i < edits->size(); ++i) {
      const json::object* edit = (*edits)[i].if_object();
      const json::value* type = edit != nullptr ? edit->if_contains("type") : nullptr;
      const bool of_thinking =
          type != nullptr && type->is_string() && type->get_string().starts_with("clear_thinking");
      if (of_thinking) continue;  // chat templates leave earlier thinking out anyway
      inner.Fail("edits", "context_management.edits may only clear thinking");
    }
  }
}

// {"type": "json_schema", "schema": ...}, as chat's response_format.
void ReadFormat(RequestFields& holder, const char* key, json::object* chat) {
  const json::object* object = holder.Object(key);
  if (object == nullptr) return;
  RequestFields format(*object, holder.error(), holder.Name(key));
  const json::value* schema = format.Find("schema");
  if (format.String("type", "") != "json_schema" || schema == nullptr) {
    format.Fail("type", fmt::format("{} must be {{\"type\": \"json_schema\", \"schema\": ...}}",
                                    holder.Name(key)));
    return;
  }
  (*chat)["response_format"] = {
      {"type", "json_schema"},
      {"json_schema", {{"name", "answer"}, {"schema", *schema}, {"strict", true}}}};
}

// Of what ParseChat finds wrong.
constexpr std::pair<std::string_view, std::string_view> kWords[] = {
    {"response_format.json_schema", "output_config.format"},
    {"response_format", "output_config.format"},
    {"reasoning_effort", "output_config.effort"},
    {"stop", "stop_sequences"},
    {"].function.parameters", "].input_schema"},
    {"].function", "]"}};

// Thinking and its effort.
void ReadThinking(RequestFields& fields, json::object* chat) {
  const json::value* thinking = fields.Find("thinking");
  (*chat)["thinking"] = thinking != nullptr ? *thinking : json::object{{"type", "disabled"}};
  const json::object* output = fields.Object("output_config");
  if (output == nullptr) return;
  RequestFields inner(*output, fields.error(), "output_config");
  ReadFormat(inner, "format", chat);
  if (const json::value* effort = inner.Find("effort")) (*chat)["reasoning_effort"] = *effort;
}

}  // namespace

std::optional<ApiError> ParseMessages(json::object body, const RequestLimits& limits,
                                      bool generates, ChatRequest* request) {
  std::optional<ApiError> error;
  RequestFields fields(body, &error);
  Refuse(fields);
  json::object chat(body.storage());
  TakeChatFields(fields, body,
                 {"messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences",
                  "thinking", "output_config", "output_format", "context_management"},
                 &chat);
  json::array messages = ReadMessages(fields, body);
  json::array tools = ReadTools(fields, body);
  ReadToolChoice(fields, !tools.empty(), &chat);
  ReadFormat(fields, "output_format", &chat);  // its older name
  ReadThinking(fields, &chat);
  // No answer is longer than the context: a cap above it says nothing.
  const auto most = fields.MaybeInteger("max_tokens", 1, INT32_MAX);
  if (generates && !most) fields.Fail("max_tokens", "max_tokens is required");
  if (error) return error;
  if (most) chat["max_tokens"] = std::min<int64_t>(*most, limits.max_model_len);
  const json::object& last = messages.back().get_object();
  if (last.at("role") == json::value("assistant")) {  // the answer's beginning
    chat["continue_final_message"] = true;
    chat["add_generation_prompt"] = false;
  }
  chat["messages"] = std::move(messages);
  if (!tools.empty()) chat["tools"] = std::move(tools);
  if (const json::value* stops = fields.Find("stop_sequences")) {
    if (fields.Array("stop_sequences") == nullptr) return error;
    chat["stop"] = *stops;
  }
  error = ParseChat(std::move(chat), limits, request);
  if (auto& grammar = request->params.grammar) grammar->param = Reworded(grammar->param, kWords);
  if (error) return Reworded(std::move(*error), kWords);
  return error;
}

json::object MessagesError(const ApiError& error) {
  const auto type = [&error]() -> std::string_view {
    switch (error.status) {
      case 400: return "invalid_request_error";
      case 401: return "authentication_error";
      case 403: return "permission_error";
      case 404: return "not_found_error";
      case 413: return "request_too_large";
      case 429: return "rate_limit_error";
      case 503: return "overloaded_error";
      case 408:
      case 504: return "timeout_error";
      default: return "api_error";
    }
  };
  return {{"type", "error"}, {"error", {{"type", type()}, {"message", error.message}}}};
}

HttpResponse Refusal(const HttpRequest& request, const ApiError& error) {
  HttpResponse response = ErrorResponse(error);
  if (RouteName(request.path).starts_with("/v1/messages")) {
    response.body = json::serialize(MessagesError(error));
  }
  return response;
}

}  // namespace fathom
