#include "chat/template_traits.h"

#include <boost/json.hpp>
#include <string>
#include <string_view>

namespace fathom {

namespace json = boost::json;

namespace {

// Words that no template has of its own.
constexpr std::string_view kTool = "probed_tool_2718", kCall = "probed_call_2818";

json::object UserMessage() {
  return {{"role", "user"}, {"content", "Hi"}};
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
  const json::object call = {
      {"id", "1"}, {"type", "function"}, {"function", {{"name", kCall}, {"arguments", "{}"}}}};
  const json::object calls = {
      {"role", "assistant"}, {"content", nullptr}, {"tool_calls", json::array{call}}};
  const json::object result = {{"role", "tool"}, {"content", "1"}, {"tool_call_id", "1"}};
  asked["messages"] = json::array{UserMessage(), calls, result};
  const Result<SpannedText> with_call = chat_template.Render(asked, trusted);
  if (!with_call.ok()) return traits;
  const std::string_view text = with_call->text();
  const std::string name_first = std::string(kCall) + "<｜tool▁sep｜>";
  const std::string fenced = "<｜tool▁sep｜>" + std::string(kCall);
  if (text.find(name_first) != text.npos) traits.tool_call_form = ToolCallForm::kNameFirst;
  if (text.find(fenced) != text.npos) traits.tool_call_form = ToolCallForm::kFenced;
  return traits;
}

}  // namespace fathom
