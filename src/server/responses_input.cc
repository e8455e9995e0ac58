#include "server/responses_input.h"

#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "server/json_syntax.h"
#include "server/unsupported_fields.h"

namespace fathom {

namespace json = boost::json;

namespace {

// Of a list of parts, the `member` of each that has it, joined.
std::string JoinedParts(RequestFields& item, const char* key, std::string_view separator) {
  std::string text;
  const json::value* content = item.Find(key);
  if (content != nullptr && content->is_string()) return item.String(key, "");
  bool first = true;
  item.EachObject(key, [&](RequestFields& part) {
    const std::string type = part.String("type", "");
    const bool is_text = type == "input_text" || type == "output_text" || type == "text" ||
                         type == "reasoning_text" || type == "summary_text" || type == "refusal";
    if (!is_text) {
      part.Fail("type", fmt::format("{} is {}; this model reads text only", part.Name("type"),
                                    Excerpt(json::value(type))));
      return;
    }
    text.append(first ? "" : separator)
        .append(part.RequiredString(type == "refusal" ? "refusal" : "text"));
    first = false;
  });
  return text;
}

// Collects items; those of the assistant that follow each other become one message.
class InputReader {
 public:
  // `messages`: those of an earlier response.
  explicit InputReader(json::array* messages) : messages_(*messages) {
    for (const json::value& message : messages_) {
      const json::value* made = message.get_object().if_contains("tool_calls");
      if (made == nullptr) continue;
      for (const json::value& call : made->as_array()) {
        calls_.insert(std::string(std::string_view(call.at("id").as_string())));
      }
    }
  }

  void Read(RequestFields& item) {
    const std::string type = item.String("type", "message");
    if (type == "message") return ReadMessage(item);
    if (type == "function_call") {
      ReadCall(item);
    } else if (type == "function_call_output") {
      Flush();
      const std::string output = JoinedParts(item, "output", "\n");
      const std::string id = item.RequiredString("call_id");
      if (!calls_.contains(id)) {
        item.Fail("call_id", fmt::format("{} is {}: no function_call before has that call_id",
                                         item.Name("call_id"), Excerpt(json::value(id))));
      }
      Push("tool", output)["tool_call_id"] = id;
    } else if (type == "reasoning") {
      const std::string text = JoinedParts(item, "content", "\n");
      Assistant().reasoning += text.empty() ? JoinedParts(item, "summary", "\n") : text;
    } else {
      item.Fail("type", fmt::format("{} is {}, which is not supported: message, function_call, "
                                    "function_call_output and reasoning are",
                                    item.Name("type"), Excerpt(json::value(type))));
    }
  }

  void Flush() {
    if (!assistant_) return;
    // Reasoning that nothing follows says nothing to a template.
    if (!assistant_->content.empty() || !assistant_->calls.empty()) {
      messages_.push_back(ToChat(*assistant_, messages_.storage()));
    }
    assistant_.reset();
  }

  json::object& Push(std::string_view role, std::string_view content) {
    messages_.push_back(json::object({{"role", role}, {"content", content}}, messages_.storage()));
    return messages_.back().get_object();
  }

 private:
  void ReadCall(RequestFields& item) {
    const std::string id = item.RequiredString("call_id"),
                      arguments = item.RequiredString("arguments");
    calls_.insert(id);
    Assistant().calls.push_back({id, item.RequiredString("name"), arguments});
  }

  void ReadMessage(RequestFields& item) {
    constexpr UnsupportedField kPrefix = {"prefix", "[false]", "/v1/chat/completions has it"};
    RefuseFields(item, {&kPrefix, 1});
    const std::string role = item.RequiredString("role");
    if (item.Find("content") == nullptr) {
      item.Fail("content", item.Name("content") + " is required");
    }
    const std::string text = JoinedParts(item, "content", "\n");
    if (role == "assistant") {
      if (assistant_ && !assistant_->content.empty()) Flush();
      Assistant().content = text;
      return;
    }
    Flush();
    if (role != "user" && role != "system" && role != "developer") {
      item.Fail("role", fmt::format("{} must be \"user\", \"assistant\", \"system\" or "
                                    "\"developer\"",
                                    item.Name("role")));
    }
    Push(role, text);
  }

  AssistantMessage& Assistant() {
    if (!assistant_) assistant_.emplace();
    return *assistant_;
  }

  json::array& messages_;
  std::set<std::string, std::less<>> calls_;  // by their ids
  std::optional<AssistantMessage> assistant_;
};

// What a model writes as arguments may be none, and chats take no other.
std::string AsJsonObject(const std::string& arguments) {
  if (arguments.empty()) return "{}";
  if (IsJsonObject(arguments)) return arguments;
  return json::serialize(json::object{{"INVALID_JSON", arguments}});
}

}  // namespace

void ReadInput(RequestFields& fields, json::object& body, json::array* messages) {
  InputReader reader(messages);
  const json::value* input = fields.Find("input");
  if (input != nullptr && input->is_string()) {
    reader.Push("user", std::string_view(input->get_string()));
    return;
  }
  const json::array* items = input != nullptr ? input->if_array() : nullptr;
  if (items == nullptr || items->empty()) {
    fields.Fail("input", "input is required: a string, or a list of items");
    return;
  }
  messages->reserve(messages->size() + items->size());
  fields.TakeObjects(body, "input", [&](RequestFields& item, json::object&) { reader.Read(item); });
  reader.Flush();
  if (messages->empty()) fields.Fail("input", "input must hold more than reasoning");
}

json::object ToChat(const AssistantMessage& message, json::storage_ptr storage) {
  json::object chat(storage);
  chat.reserve(message.calls.empty() ? 2 : 3);
  chat["role"] = "assistant";
  chat["content"] = message.content;
  if (!message.reasoning.empty()) chat["reasoning"] = message.reasoning;
  if (message.calls.empty()) return chat;
  json::array calls(storage);
  calls.reserve(message.calls.size());
  for (const AssistantMessage::Call& call : message.calls) {
    json::object function({{"name", call.name}, {"arguments", AsJsonObject(call.arguments)}},
                          storage);
    calls.push_back(json::object(
        {{"id", call.id}, {"type", "function"}, {"function", std::move(function)}}, storage));
  }
  chat["tool_calls"] = std::move(calls);
  return chat;
}

}  // namespace fathom
