#include "chat/template_traits.h"

#include <boost/json.hpp>
#include <string>
#include <string_view>

namespace fathom {

namespace json = boost::json;

namespace {

// Words that no template has of its own.
constexpr std::string_view kTool = "probed_tool_2718", kCall = "probed_call_2818",
                           kArguments = R"({"probed": 1})";

json::object UserMessage() {
  return {{"role", "user"}, {"content", "Hi"}};
}

// A conversation with a call in it, as `traits` has it; "" if that cannot be rendered.
std::string WithCall(const ChatTemplate& chat_template, const json::object& trusted,
                     const TemplateTraits& traits) {
  const json::value text = traits.null_content ? json::value(nullptr) : json::value("");
  const json::value arguments =
      traits.object_arguments ? json::parse(kArguments) : json::value(kArguments);
  const json::object call = {
      {"id", "1"}, {"type", "function"}, {"function", {{"name", kCall}, {"arguments", arguments}}}};
  const json::object calls = {
      {"role", "assistant"}, {"content", text}, {"tool_calls", json::array{call}}};
  const json::object result = {{"role", "tool"}, {"content", "1"}, {"tool_call_id", "1"}};
  const Result<SpannedText> rendered = chat_template.Render(
      {{"messages", json::array{UserMessage(), calls, result}}, {"add_generation_prompt", true}},
      trusted);
  return rendered.ok() ? rendered->text() : "";
}

// In which form calls are written, and what they must be given as for that.
void FindCalls(const ChatTemplate& chat_template, const json::object& trusted,
               TemplateTraits* traits) {
  const std::string name_first = std::string(kCall) + "<｜tool▁sep｜>";
  const std::string fenced = "<｜tool▁sep｜>" + std::string(kCall);
  for (const bool object_arguments : {false, true}) {
    for (const bool null_content : {true, false}) {
      TemplateTraits tried = *traits;
      tried.object_arguments = object_arguments;
      tried.null_content = null_content;
      const std::string text = WithCall(chat_template, trusted, tried);
      // Text that is made JSON once more has its quotes escaped.
      if (text.find(kCall) == text.npos || text.find(kArguments) == text.npos) continue;
      *traits = tried;
      if (text.find(name_first) != text.npos) traits->tool_call_form = ToolCallForm::kNameFirst;
      if (text.find(fenced) != text.npos) traits->tool_call_form = ToolCallForm::kFenced;
      return;
    }
  }
}

}  // namespace

TemplateTraits FindTraits(const ChatTemplate& chat_template, const json::object& trusted) {
  const json::object tool = {{"type", "function"},
                             {"function",
                              {{"name", kTool},
                               {"description", ""},
                               {"parameters", {{"type", "object"}, {"properties", {}}}}}}};
  json::object asked = {{"messages", json::array{UserMessage()}},
                        {"tools", json::array{tool}},
                        {"add_generation_prompt", true}};
  const Result<SpannedText> with_tools = chat_template.Render(asked, trusted);
  // One that refuses tools has read them.
  TemplateTraits traits{.reads_tools = !with_tools.ok() ||
                                       with_tools->text().find(kTool) != std::string_view::npos};
  FindCalls(chat_template, trusted, &traits);
  return traits;
}

}  // namespace fathom
