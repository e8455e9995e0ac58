#include "server/tool_grammar.h"

#include <boost/json.hpp>
#include <string_view>
#include <utility>

#include "grammar/grammar_limits.h"

namespace fathom {

namespace json = boost::json;

namespace {

json::object Text(std::string_view text) {
  return {{"type", "const_string"}, {"value", text}};
}

// The tokens that begin and end calls.
struct CallMarkers {
  json::object calls_begin, calls_end, call_begin, call_end, separator;
};

std::optional<CallMarkers> MarkersOf(const Tokenizer& tokenizer) {
  CallMarkers markers;
  const auto find = [&](std::string_view spelling, json::object& marker) {
    const std::optional<TokenId> id = tokenizer.IdOf(spelling);
    if (id) marker = {{"type", "token"}, {"token", Raw(*id)}};
    return id.has_value();
  };
  const bool all = find("<｜tool▁calls▁begin｜>", markers.calls_begin) &&
                   find("<｜tool▁calls▁end｜>", markers.calls_end) &&
                   find("<｜tool▁call▁begin｜>", markers.call_begin) &&
                   find("<｜tool▁call▁end｜>", markers.call_end) &&
                   find("<｜tool▁sep｜>", markers.separator);
  return all ? std::optional(std::move(markers)) : std::nullopt;
}

json::object Sequence(json::array elements) {
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}

json::object CallOf(const CallableTool& tool, ToolCallForm form, const CallMarkers& markers) {
  json::object arguments = {{"type", "json_schema"},
                            {"json_schema", json::parse(tool.parameters)},
                            {"max_whitespace_cnt", kMaxWhitespace}};
  if (form == ToolCallForm::kNameFirst) {
    return Sequence({markers.call_begin, Text(tool.name), markers.separator, std::move(arguments),
                     markers.call_end});
  }
  return Sequence({markers.call_begin, Text("function"), markers.separator,
                   Text(tool.name + "\n```json\n"), std::move(arguments), Text("\n```"),
                   markers.call_end});
}

}  // namespace

std::vector<CallableTool> ToolsToCall(const ChatPrompt& prompt) {
  std::vector<CallableTool> tools;
  if (!prompt.must_call) return tools;
  for (const json::value& tool : prompt.tools) {
    const json::object& function = tool.at("function").as_object();
    const std::string_view name = function.at("name").as_string();
    if (!prompt.must_call_name.empty() && name != prompt.must_call_name) continue;
    json::object parameters = function.at("parameters").as_object();
    if (parameters.empty()) parameters = {{"type", "object"}, {"additionalProperties", true}};
    tools.push_back({std::string(name), json::serialize(parameters)});
  }
  return tools;
}

std::optional<ApiError> GrammarOfCalls(const std::vector<CallableTool>& tools, ToolCallForm form,
                                       bool several, const Tokenizer& tokenizer,
                                       std::optional<AskedGrammar>* grammar) {
  const std::optional<CallMarkers> markers = MarkersOf(tokenizer);
  if (!markers) {
    return BadParameter("tool_choice",
                        "this model has no tokens for calls of tools: a call cannot be forced");
  }
  json::array calls;
  for (const CallableTool& tool : tools) calls.push_back(CallOf(tool, form, *markers));
  json::object any = {{"type", "or"}, {"elements", std::move(calls)}};
  json::object all = any;
  if (several) all = {{"type", "plus"}, {"content", std::move(any)}};
  const json::object tag = {
      {"type", "structural_tag"},
      {"format", Sequence({markers->calls_begin, std::move(all), markers->calls_end})}};
  *grammar = AskedGrammar{{GrammarKind::kStructuralTag, json::serialize(tag)}, "tools"};
  return std::nullopt;
}

}  // namespace fathom
