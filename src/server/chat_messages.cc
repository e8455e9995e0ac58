#include "server/chat_messages.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "chat/output_parser.h"

namespace fathom {

namespace json = boost::json;

namespace {

// The text of a message's content: a string, or a list of {"type": "text", "text": ...} parts,
// which are joined by line breaks. Null if there is none.
json::value ReadContent(RequestFields& message) {
  const json::value* content = message.Find("content");
  if (content == nullptr) return nullptr;
  if (content->is_string()) return *content;
  if (!content->is_array()) {
    message.Fail("content", fmt::format("{} must be a string or a list of text parts",
                                        message.Name("content")));
    return nullptr;
  }
  std::string text;
  const json::array& parts = content->get_array();
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name = fmt::format("{}[{}]", message.Name("content"), i);
    if (parts[i].is_string()) {
      text.append(i ? "\n" : "").append(std::string_view(parts[i].get_string()));
      continue;
    }
    const json::object* part = parts[i].if_object();
    const json::value* type = part ? part->if_contains("type") : nullptr;
    if (type == nullptr || !type->is_string()) {
      message.Fail("content", fmt::format("{} must be an object with a \"type\"", name));
      return nullptr;
    }
    if (type->get_string() != "text") {
      message.Fail("content", fmt::format("{} is of type {}; this model reads text only", name,
                                          Excerpt(*type)));
      return nullptr;
    }
    const json::value* piece = part->if_contains("text");
    if (piece == nullptr || !piece->is_string()) {
      message.Fail("content", fmt::format("{}.text must be a string", name));
      return nullptr;
    }
    text.append(i ? "\n" : "").append(std::string_view(piece->get_string()));
  }
  return json::value(text);
}

json::array ReadToolCalls(RequestFields& message) {
  json::array result(message.storage());
  const json::array* calls = message.Array("tool_calls");
  if (calls == nullptr) return result;
  for (size_t i = 0; i < calls->size() && !message.failed(); ++i) {
    const std::string name = fmt::format("{}[{}]", message.Name("tool_calls"), i);
    const json::object* call = (*calls)[i].if_object();
    const json::value* function = call ? call->if_contains("function") : nullptr;
    if (function == nullptr || !function->is_object()) {
      message.Fail("tool_calls", fmt::format("{} must be {{\"id\", \"type\": \"function\", "
                                             "\"function\": {{\"name\", \"arguments\"}}}}",
                                             name));
      break;
    }
    RequestFields fields(function->get_object(), message.error(), name + ".function");
    if (fields.Find("name") == nullptr) fields.Fail("name", fields.Name("name") + " is required");
    json::object named = {{"name", fields.String("name", "")},
                          {"arguments", fields.String("arguments", "{}")}};
    RequestFields outer(*call, message.error(), name);
    result.push_back(json::object{
        {"id", outer.String("id", "")}, {"type", "function"}, {"function", std::move(named)}});
  }
  return result;
}

json::object ReadMessage(RequestFields& message) {
  std::string role = message.String("role", "");
  if (role == "developer") role = "system";
  static constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    message.Fail("role", fmt::format("{} must be one of \"system\", \"developer\", \"user\", "
                                     "\"assistant\" or \"tool\"",
                                     message.Name("role")));
    return {};
  }
  json::object result({{"role", role}, {"content", ReadContent(message)}}, message.storage());
  if (const json::value* name = message.Find("name"); name != nullptr && name->is_string()) {
    result["name"] = *name;
  }
  if (role == "assistant") {
    // One thing under two names: vLLM's new one and DeepSeek's.
    std::string reasoning = message.String("reasoning", message.String("reasoning_content", ""));
    if (!reasoning.empty()) {  // one by one: a second insertion may move what the first returned
      result["reasoning"] = reasoning;
      result["reasoning_content"] = reasoning;
    }
    json::array calls = ReadToolCalls(message);
    if (!calls.empty()) {
      // V3's and R1's templates drop the calls of a message that has a content, be it empty.
      if (result["content"] == json::value("")) result["content"] = nullptr;
      result["tool_calls"] = std::move(calls);
    }
    if (message.Find("function_call") != nullptr) {
      message.Fail("function_call", "function_call is not supported: use tool_calls");
    }
  } else if (result["content"].is_null()) {
    message.Fail("content", fmt::format("{} is required", message.Name("content")));
  }
  if (role == "tool") result["tool_call_id"] = message.String("tool_call_id", "");
  return result;
}

json::object ReadTool(RequestFields& tool) {
  if (tool.String("type", "function") != "function") {
    tool.Fail("type", fmt::format("{} must be \"function\"", tool.Name("type")));
  }
  const json::object* function = tool.Object("function");
  if (function == nullptr) {
    tool.Fail("function", fmt::format("{} is required", tool.Name("function")));
    return {};
  }
  RequestFields fields(*function, tool.error(), tool.Name("function"));
  const std::string name = fields.String("name", "");
  if (name.empty() || name.size() > OutputParser::kMaxToolNameBytes) {
    fields.Fail("name", fmt::format("{} must be a name of 1 to {} bytes", fields.Name("name"),
                                    OutputParser::kMaxToolNameBytes));
  }
  // Templates print description and parameters without asking whether they are there.
  const json::object* parameters = fields.Object("parameters");
  json::object described(
      {{"name", name}, {"description", fields.String("description", "")}, {"parameters", nullptr}},
      tool.storage());
  json::object& copy = described["parameters"].emplace_object();
  if (parameters != nullptr) copy = *parameters;
  return json::object({{"type", "function"}, {"function", std::move(described)}}, tool.storage());
}

// Whether the tools that the request brings are in use.
bool ReadToolChoice(RequestFields& fields, bool has_tools) {
  for (const char* old : {"functions", "function_call"}) {
    if (fields.Find(old) != nullptr) {
      fields.Fail(old, fmt::format("{} is not supported: use tools and tool_choice", old));
    }
  }
  const json::value* choice = fields.Find("tool_choice");
  if (choice == nullptr) return has_tools;
  if (choice->is_string() && choice->get_string() == "none") return false;
  if (choice->is_string() && choice->get_string() == "auto") {
    if (!has_tools) fields.Fail("tool_choice", "tool_choice \"auto\" needs tools");
    return true;
  }
  fields.Fail("tool_choice", fmt::format("tool_choice must be \"auto\" or \"none\": {} is not "
                                         "supported, as the answer's form cannot be forced",
                                         choice->is_object() ? "a named tool" : Excerpt(*choice)));
  return false;
}

// Whether to think: "thinking" in DeepSeek's templates and tiny-r1's, "enable_thinking" in others;
// either name means both. Where a request has neither, OpenAI's reasoning_effort decides: "none"
// does not think, "low", "medium" and "high" do, and other values are left to the template.
void ReadThinking(RequestFields& fields, json::object* variables) {
  const json::value* effort = fields.Find("reasoning_effort");
  const bool named = effort != nullptr && effort->is_string();
  if (named) variables->emplace("reasoning_effort", *effort);
  std::optional<json::value> thinking;
  for (const char* name : {"thinking", "enable_thinking"}) {
    const json::value* given = variables->if_contains(name);
    if (given != nullptr && !thinking) thinking = *given;
  }
  if (!thinking && named) {
    const json::string& level = effort->get_string();
    if (level == "none") thinking = false;
    if (level == "low" || level == "medium" || level == "high") thinking = true;
  }
  if (!thinking) return;
  variables->emplace("thinking", *thinking);
  variables->emplace("enable_thinking", *thinking);
}

// The objects of a list, each read by `read` into `out`.
template <class Read>
void ReadObjects(RequestFields& fields, const char* key, size_t max, Read read, json::array* out) {
  const json::array* list = fields.Array(key);
  if (list == nullptr) return;
  if (list->size() > max) {
    fields.Fail(key,
                fmt::format("{} has {} entries; at most {} are allowed", key, list->size(), max));
    return;
  }
  for (size_t i = 0; i < list->size() && !fields.failed(); ++i) {
    const std::string name = fmt::format("{}[{}]", key, i);
    if (!(*list)[i].is_object()) {
      fields.Fail(key, fmt::format("{} must be an object, not {}", name, Excerpt((*list)[i])));
      return;
    }
    RequestFields entry((*list)[i].get_object(), fields.error(), name);
    out->push_back(read(entry));
  }
}

}  // namespace

void ReadChatPrompt(RequestFields& fields, ChatPrompt* prompt) {
  const json::array* messages = fields.Array("messages");
  if (messages == nullptr || messages->empty()) {
    fields.Fail("messages", "messages is required: a list of at least one message");
    return;
  }
  ReadObjects(fields, "messages", kMaxMessages, ReadMessage, &prompt->messages);
  ReadObjects(fields, "tools", kMaxTools, ReadTool, &prompt->tools);
  if (!ReadToolChoice(fields, !prompt->tools.empty())) prompt->tools.clear();
  prompt->add_generation_prompt = fields.Bool("add_generation_prompt", true);
  if (const json::object* kwargs = fields.Object("chat_template_kwargs")) {
    prompt->template_kwargs = *kwargs;
  }
  ReadThinking(fields, &prompt->template_kwargs);
}

}  // namespace fathom
