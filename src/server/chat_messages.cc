#include "server/chat_messages.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "chat/output_parser.h"
#include "server/json_syntax.h"
#include "server/thinking_fields.h"

namespace fathom {

namespace json = boost::json;

namespace {

// In which member of a part its text stands; "" for what is no text. As in vLLM, OpenAI's and
// Anthropic's names of parts are all read.
std::string_view TextMember(std::string_view type) {
  if (type == "text" || type == "input_text" || type == "output_text") return "text";
  if (type == "refusal") return "refusal";
  return type == "thinking" ? "thinking" : "";
}

// Of a string, or of {"type": "text", "text": ...}. Null if there is none.
const json::string* PartText(const json::value& part, const std::string& name,
                             RequestFields& message) {
  if (part.is_string()) return &part.get_string();
  const json::object* object = part.if_object();
  const json::value* type = object ? object->if_contains("type") : nullptr;
  if (type == nullptr || !type->is_string()) {
    message.Fail("content", fmt::format("{} must be an object with a \"type\"", name));
    return nullptr;
  }
  const std::string_view member = TextMember(type->get_string());
  if (member.empty()) {
    message.Fail("content",
                 fmt::format("{} is of type {}; this model reads text only", name, Excerpt(*type)));
    return nullptr;
  }
  const json::value* text = object->if_contains(member);
  if (text != nullptr && text->is_string()) return &text->get_string();
  message.Fail("content", fmt::format("{}.{} must be a string", name, member));
  return nullptr;
}

// The text of a message's content: a string, or a list of parts, which are joined by line breaks.
// Null if there is none. `own` is the message, which loses a content that is a long string.
json::value ReadContent(RequestFields& message, json::object& own) {
  const json::value* content = message.Find("content");
  if (content == nullptr) return nullptr;
  if (content->is_string()) return TakeText(own.at("content"), message.storage());
  if (!content->is_array()) {
    message.Fail("content", fmt::format("{} must be a string or a list of text parts",
                                        message.Name("content")));
    return nullptr;
  }
  const json::array& parts = content->get_array();
  size_t bytes = parts.size();
  json::string text(message.storage());
  for (const bool writes : {false, true}) {
    if (writes) text.reserve(bytes);
    for (size_t i = 0; i < parts.size(); ++i) {
      const json::string* part =
          PartText(parts[i], fmt::format("{}[{}]", message.Name("content"), i), message);
      if (part == nullptr) return nullptr;
      if (writes) text.append(i ? "\n" : "").append(*part);
      bytes += part->size();
    }
  }
  return json::value(std::move(text));
}

// As text: templates write it as it stands, so that what is no object would teach the model wrong.
std::string ReadArguments(RequestFields& function) {
  const json::value* given = function.Find("arguments");
  if (given == nullptr || *given == json::value("")) return "{}";
  if (given->is_object()) return json::serialize(*given);
  const std::string text = function.String("arguments", "{}");
  if (!IsJsonObject(text)) {
    function.Fail("arguments",
                  fmt::format("{} must be a JSON object, as text", function.Name("arguments")));
  }
  return text;
}

// Frees those of `own`, the message, that are read.
json::array ReadToolCalls(RequestFields& message, json::object& own) {
  json::array result(message.storage());
  const json::array* calls = message.Array("tool_calls");
  if (calls == nullptr) return result;
  result.reserve(calls->size());
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
    json::object named(
        {{"name", fields.RequiredString("name")}, {"arguments", ReadArguments(fields)}},
        result.storage());
    RequestFields outer(*call, message.error(), name);
    result.push_back(json::object(
        {{"id", outer.String("id", "")}, {"type", "function"}, {"function", std::move(named)}},
        result.storage()));
    own.at("tool_calls").get_array()[i] = nullptr;
  }
  return result;
}

json::object ReadMessage(RequestFields& message, json::object& own) {
  std::string role = message.String("role", "");
  if (role == "developer") role = "system";
  static constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    message.Fail("role", fmt::format("{} must be one of \"system\", \"developer\", \"user\", "
                                     "\"assistant\" or \"tool\"",
                                     message.Name("role")));
    return {};
  }
  json::object result(message.storage());
  result.reserve(role == "tool" || message.Find("tool_calls") != nullptr ? 3 : 2);
  result.emplace("role", role);
  result.emplace("content", ReadContent(message, own));
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
    json::array calls = ReadToolCalls(message, own);
    if (!calls.empty()) result["tool_calls"] = std::move(calls);
    if (message.Bool("prefix", false)) result["prefix"] = true;  // V3.1's template reads it
    if (message.Find("function_call") != nullptr) {
      message.Fail("function_call", "function_call is not supported: use tool_calls");
    }
  } else if (result.at("content").is_null()) {  // [] makes room for another member
    message.Fail("content", fmt::format("{} is required", message.Name("content")));
  }
  if (role == "tool") result["tool_call_id"] = message.String("tool_call_id", "");
  return result;
}

// A call's arguments are an object, in every model's form.
void CheckParameters(const json::object& schema, const std::string& name, RequestFields& function) {
  const json::value* type = schema.if_contains("type");
  if (type == nullptr || type->is_null() || *type == json::value("object")) return;
  const json::array* several = type->if_array();
  if (several != nullptr && std::ranges::find(*several, json::value("object")) != several->end()) {
    return;
  }
  function.Fail("parameters.type",
                fmt::format("{} is {}: the arguments of \"{}\" must be an object, so that the "
                            "schema's type must be \"object\"",
                            function.Name("parameters.type"), Excerpt(*type), name));
}

json::object ReadTool(RequestFields& tool, std::vector<std::string>* strict) {
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
  if (fields.Bool("strict", false)) strict->push_back(name);
  if (name.empty() || name.size() > OutputParser::kMaxToolNameBytes) {
    fields.Fail("name", fmt::format("{} must be a name of 1 to {} bytes", fields.Name("name"),
                                    OutputParser::kMaxToolNameBytes));
  }
  // Templates print description and parameters without asking whether they are there.
  const json::object* parameters = fields.Object("parameters");
  if (parameters != nullptr) CheckParameters(*parameters, name, fields);
  json::object described(
      {{"name", name}, {"description", fields.String("description", "")}, {"parameters", nullptr}},
      tool.storage());
  json::object& copy = described.at("parameters").emplace_object();
  if (parameters != nullptr) copy = *parameters;
  return json::object({{"type", "function"}, {"function", std::move(described)}}, tool.storage());
}

// The name in {"type": "function", "function": {"name": ...}}, or as the Responses API has it
// without "function"; null if it has none. Whether there is such a tool is checked.
const json::string* NamedTool(RequestFields& fields, const json::value& choice,
                              const ChatPrompt& prompt) {
  const json::object* object = choice.if_object();
  if (object == nullptr) return nullptr;
  const json::value* type = object->if_contains("type");
  if (type != nullptr && *type != json::value("function")) return nullptr;
  const json::value* function = object->if_contains("function");
  const json::object* named = function != nullptr ? function->if_object() : object;
  const json::value* name = named != nullptr ? named->if_contains("name") : nullptr;
  if (name == nullptr || !name->is_string()) return nullptr;
  const auto is_it = [&](const json::value& tool) {
    return tool.at("function").at("name") == *name;
  };
  if (std::ranges::none_of(prompt.tools, is_it)) {
    fields.Fail("tool_choice",
                fmt::format("tool_choice names {}, which is none of the tools", Excerpt(*name)));
  }
  return &name->get_string();
}

// {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}, or as the Responses API has it
// without the inner "allowed_tools". The model hears of these tools alone.
void ReadAllowedTools(RequestFields& fields, const json::object& choice, ChatPrompt* prompt) {
  const json::value* inner = choice.if_contains("allowed_tools");
  const json::object* allowed = inner != nullptr ? inner->if_object() : &choice;
  const json::value* mode = allowed != nullptr ? allowed->if_contains("mode") : nullptr;
  const json::value* list = allowed != nullptr ? allowed->if_contains("tools") : nullptr;
  const bool required = mode != nullptr && *mode == json::value("required");
  const bool known = required || (mode != nullptr && *mode == json::value("auto"));
  if (!known || list == nullptr || !list->is_array() || list->get_array().empty()) {
    fields.Fail("tool_choice",
                "tool_choice of type \"allowed_tools\" must have a mode, \"auto\" or \"required\", "
                "and tools, a list of at least one of {\"type\": \"function\", ...}");
    return;
  }
  std::set<std::string_view> names;
  for (const json::value& one : list->get_array()) {
    const json::string* name = NamedTool(fields, one, *prompt);
    if (name == nullptr) {
      fields.Fail("tool_choice", "the tools of tool_choice must be functions with a name");
      return;
    }
    names.insert(*name);
  }
  const auto is_left_out = [&](std::string_view name) { return !names.contains(name); };
  json::array kept(prompt->tools.storage());
  for (json::value& tool : prompt->tools) {
    if (!is_left_out(tool.at("function").at("name").as_string())) kept.push_back(std::move(tool));
  }
  prompt->tools = std::move(kept);
  std::erase_if(prompt->strict_tools, is_left_out);
  prompt->must_call = required;
}

// tool_choice "required", or a tool's name.
void ReadForcedCall(RequestFields& fields, const json::value& choice, ChatPrompt* prompt) {
  prompt->must_call = true;
  if (prompt->tools.empty()) fields.Fail("tool_choice", "tool_choice needs tools to call");
  if (choice == json::value("required")) return;
  const json::string* name = NamedTool(fields, choice, *prompt);
  if (name == nullptr) {
    fields.Fail("tool_choice",
                "tool_choice must be \"none\", \"auto\", \"required\", or of type \"function\" or "
                "\"allowed_tools\": {\"type\": \"function\", \"function\": {\"name\": ...}}");
    return;
  }
  prompt->must_call_name = std::string(std::string_view(*name));
}

// Whether the tools that the request brings are in use.
bool ReadToolChoice(RequestFields& fields, ChatPrompt* prompt) {
  const bool has_tools = !prompt->tools.empty();
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
  const json::object* object = choice->if_object();
  const json::value* type = object != nullptr ? object->if_contains("type") : nullptr;
  if (type != nullptr && *type == json::value("allowed_tools")) {
    ReadAllowedTools(fields, *object, prompt);
  } else {
    ReadForcedCall(fields, *choice, prompt);
  }
  return true;
}

// The objects of a list of `body`, each read by `read` into `out` and freed.
template <class Read>
void ReadObjects(RequestFields& fields, json::object& body, const char* key, size_t max, Read read,
                 json::array* out) {
  const json::array* list = fields.Array(key);
  if (list == nullptr) return;
  if (list->size() > max) {
    fields.Fail(key,
                fmt::format("{} has {} entries; at most {} are allowed", key, list->size(), max));
    return;
  }
  out->reserve(list->size());
  fields.TakeObjects(body, key, [&](RequestFields& entry, json::object& own) {
    out->push_back(read(entry, own));
  });
}

// Boost's comparison copies the members of objects to where they live, and ends the process where
// that has no room.
bool AreSame(const json::value& a, const json::value& b) {
  if (a.is_object() && b.is_object()) {
    const json::object& other = b.get_object();
    return a.get_object().size() == other.size() &&
           std::ranges::all_of(a.get_object(), [&](const json::key_value_pair& member) {
             const json::value* same = other.if_contains(member.key());
             return same != nullptr && AreSame(member.value(), *same);
           });
  }
  if (a.is_array() && b.is_array()) {
    return std::ranges::equal(a.get_array(), b.get_array(), AreSame);
  }
  return a == b;
}

// A call says a name alone, so that nobody knows which of two tools it is of.
void CheckToolNames(RequestFields& fields, const json::array& tools) {
  std::map<std::string_view, size_t> first;
  for (size_t i = 0; i < tools.size() && !fields.failed(); ++i) {
    const json::object& function = tools[i].at("function").as_object();
    const auto [same, added] = first.emplace(function.at("name").as_string(), i);
    const json::object& other = tools[same->second].at("function").as_object();
    if (added || AreSame(other.at("parameters"), function.at("parameters"))) continue;
    fields.Fail("tools",
                fmt::format("tools[{}].function.name is {}: tools[{}] has that name and other "
                            "parameters",
                            i, Excerpt(function.at("name")), same->second));
  }
}

bool IsPrefixed(const json::value& message) {
  const json::object* object = message.if_object();
  const json::value* prefix = object != nullptr ? object->if_contains("prefix") : nullptr;
  return prefix != nullptr && *prefix == json::value(true);
}

// Whether the last message is the beginning of the answer: vLLM's continue_final_message, or
// DeepSeek's prefix of that message.
bool ReadContinuation(RequestFields& fields, bool prefixed, ChatPrompt* prompt) {
  const bool named = fields.Bool("continue_final_message", false);
  prompt->add_generation_prompt = fields.Bool("add_generation_prompt", !prefixed);
  if (!named && !prefixed) return false;
  if (prompt->add_generation_prompt) {
    fields.Fail(prefixed ? "add_generation_prompt" : "continue_final_message",
                "the last message cannot be continued where add_generation_prompt begins another: "
                "say add_generation_prompt: false");
  }
  if (fields.failed()) return false;
  const json::object& read = prompt->messages.back().get_object();
  const json::value& content = read.at("content");
  if (read.at("role") != json::value("assistant") || !content.is_string() ||
      content.get_string().empty()) {
    fields.Fail("messages",
                "only a last message of role \"assistant\" with a content can be "
                "continued");
  }
  return true;
}

}  // namespace

void ReadChatPrompt(RequestFields& fields, json::object& body, const json::object* defaults,
                    ChatPrompt* prompt) {
  const json::array* messages = fields.Array("messages");
  if (messages == nullptr || messages->empty()) {
    fields.Fail("messages", "messages is required: a list of at least one message");
    return;
  }
  const bool prefixed = IsPrefixed(messages->back());
  ReadObjects(fields, body, "messages", kMaxMessages, ReadMessage, &prompt->messages);
  const auto read_tool = [&](RequestFields& tool, json::object&) {
    return ReadTool(tool, &prompt->strict_tools);
  };
  ReadObjects(fields, body, "tools", kMaxTools, read_tool, &prompt->tools);
  if (!fields.failed()) CheckToolNames(fields, prompt->tools);
  if (!fields.failed() && !ReadToolChoice(fields, prompt)) {
    prompt->tools.clear();
    prompt->strict_tools.clear();
  }
  if (fields.failed()) return;
  prompt->continue_final_message = ReadContinuation(fields, prefixed, prompt);
  if (const json::object* kwargs = fields.Object("chat_template_kwargs")) {
    prompt->template_kwargs = *kwargs;
  }
  ReadThinking(fields, defaults, &prompt->template_kwargs);
}

}  // namespace fathom
