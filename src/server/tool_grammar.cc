#include "server/tool_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <string_view>
#include <utility>

#include "grammar/grammar_limits.h"
#include "grammar/prepared_schema.h"
#include "server/json_body.h"

namespace fathom {

namespace json = boost::json;

namespace {

// Of a body, which may be nested deeper than Boost.JSON expects.
json::value Parsed(const std::string& schema) {
  return json::parse(schema, {}, {.max_depth = kMaxJsonDepth});
}

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
                            {"json_schema", Parsed(PreparedSchema(tool.parameters, tool.strict))},
                            {"max_whitespace_cnt", kMaxWhitespace}};
  if (form == ToolCallForm::kNameFirst) {
    return Sequence({markers.call_begin, Text(tool.name), markers.separator, std::move(arguments),
                     markers.call_end});
  }
  return Sequence({markers.call_begin, Text("function"), markers.separator,
                   Text(tool.name + "\n```json\n"), std::move(arguments), Text("\n```"),
                   markers.call_end});
}

// What the text is held to where nothing is called. Within a tag schemas are strict.
Result<json::object> FormatOf(const GrammarSpec& spec) {
  json::value schema = {{"type", "object"}, {"additionalProperties", true}};
  if (spec.kind == GrammarKind::kJsonSchema) {
    TRY(CheckGrammar(spec));
    schema = Parsed(PreparedSchema(spec.text, spec.strict));
  }
  return json::object{{"type", "json_schema"},
                      {"json_schema", std::move(schema)},
                      {"max_whitespace_cnt", kMaxWhitespace}};
}

}  // namespace

bool GoesWithTools(const AskedGrammar& grammar, const ChatPrompt& prompt) {
  const GrammarSpec& spec = grammar.spec;
  return spec.kind == GrammarKind::kJsonObject ||
         (spec.kind == GrammarKind::kJsonSchema && (spec.strict || prompt.must_call));
}

HeldCalls CallsOf(const ChatPrompt& prompt, bool parallel, bool text_held) {
  HeldCalls held{.tools = {}, .forced = prompt.must_call};
  const auto is_strict = [&](std::string_view name) {
    return std::ranges::find(prompt.strict_tools, name) != prompt.strict_tools.end();
  };
  if (!held.forced && prompt.strict_tools.empty() && !text_held) return held;
  for (const json::value& tool : prompt.tools) {
    const json::object& function = tool.at("function").as_object();
    const std::string_view name = function.at("name").as_string();
    if (!prompt.must_call_name.empty() && name != prompt.must_call_name) continue;
    json::object parameters = function.at("parameters").as_object();
    const bool strict = is_strict(name);
    if (parameters.empty() || (!held.forced && !strict)) {
      parameters = {{"type", "object"}};
      if (!strict) parameters["additionalProperties"] = true;
    }
    held.tools.push_back({std::string(name), json::serialize(parameters), strict});
  }
  // A call that is forced to one tool is one call.
  held.several = parallel && (held.tools.size() > 1 || !held.forced);
  return held;
}

std::optional<ApiError> GrammarOfCalls(const HeldCalls& held, ToolCallForm form,
                                       const Tokenizer& tokenizer,
                                       std::optional<AskedGrammar>* grammar) {
  const std::optional<CallMarkers> markers = MarkersOf(tokenizer);
  if (!markers) {
    return BadParameter(held.forced ? "tool_choice" : "tools",
                        "this model has no tokens for calls of tools: a call cannot be forced, nor "
                        "held to a schema");
  }
  json::array calls;
  for (const CallableTool& tool : held.tools) {
    const Status taken = CheckSchema(tool.parameters, /*strict=*/true);
    if (!taken.ok()) {
      return BadParameter("tools", fmt::format("tools: {}: {}", tool.name, taken.message()));
    }
    calls.push_back(CallOf(tool, form, *markers));
  }
  json::object all = {{"type", "or"}, {"elements", std::move(calls)}};
  if (held.several) all = {{"type", "plus"}, {"content", std::move(all)}};
  json::object format;
  if (held.forced || *grammar) {
    format = Sequence({markers->calls_begin, std::move(all), markers->calls_end});
    if (!held.forced) {
      const std::string& param = (*grammar)->param;
      Result<json::object> text = FormatOf((*grammar)->spec);
      if (!text.ok()) return BadParameter(param, param + ": " + text.status().message());
      json::array either = {*std::move(text), std::move(format)};
      format = {{"type", "or"}, {"elements", std::move(either)}};
    }
  } else {
    const auto id = [](const json::object& marker) { return marker.at("token"); };
    format = {{"type", "token_triggered_tags"},
              {"trigger_tokens", {id(markers->calls_begin)}},
              {"tags",
               {{{"type", "tag"},
                 {"begin", markers->calls_begin},
                 {"content", std::move(all)},
                 {"end", markers->calls_end}}}},
              {"exclude_tokens",
               {id(markers->calls_end), id(markers->call_begin), id(markers->call_end),
                id(markers->separator)}},
              {"stop_after_first", true}};
  }
  const json::object tag = {{"type", "structural_tag"}, {"format", std::move(format)}};
  *grammar = AskedGrammar{{GrammarKind::kCalls, json::serialize(tag)}, "tools"};
  return std::nullopt;
}

}  // namespace fathom
