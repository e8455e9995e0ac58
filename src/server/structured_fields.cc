#include "server/structured_fields.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/grammar_limits.h"
#include "grammar/structural_tag.h"

namespace fathom {

namespace json = boost::json;

namespace {

constexpr size_t kMaxChoices = 2000;

// As JSON, or as its text.
std::string SchemaText(const json::value& schema) {
  return schema.is_string() ? std::string(std::string_view(schema.get_string()))
                            : json::serialize(schema);
}

AskedGrammar Schema(const json::value& schema, bool strict, std::string param) {
  return {{GrammarKind::kJsonSchema, SchemaText(schema), strict}, std::move(param)};
}

std::optional<AskedGrammar> Text(RequestFields& fields, const char* key, GrammarKind kind) {
  return AskedGrammar{{kind, fields.String(key, "")}, fields.Name(key)};
}

std::optional<AskedGrammar> Choice(RequestFields& fields, const char* key) {
  const json::array* list = fields.Array(key);
  if (list == nullptr) return std::nullopt;
  std::vector<std::string> choices;
  size_t bytes = 0;
  for (const json::value& value : *list) {
    if (!value.is_string() || value.get_string().empty()) break;
    choices.emplace_back(std::string_view(value.get_string()));
    bytes += choices.back().size();
  }
  if (choices.empty() || choices.size() != list->size() || choices.size() > kMaxChoices) {
    fields.Fail(key, fmt::format("{} must be a list of 1 to {} strings, none of them empty",
                                 fields.Name(key), kMaxChoices));
  }
  if (bytes > kMaxChoiceBytes) {
    fields.Fail(key, fmt::format("{} has {} bytes of strings: at most {} are possible",
                                 fields.Name(key), bytes, kMaxChoiceBytes));
  }
  return AskedGrammar{{GrammarKind::kChoices, RegexOfChoices(choices)}, fields.Name(key)};
}

std::optional<AskedGrammar> StructuralTag(RequestFields& fields, const char* key,
                                          const std::string& text) {
  const Result<std::string> tag = ReadStructuralTag(text);
  if (!tag.ok()) {
    fields.Fail(key, fmt::format("{}: {}", fields.Name(key), tag.status().message()));
    return std::nullopt;
  }
  return AskedGrammar{{GrammarKind::kStructuralTag, *tag}, fields.Name(key)};
}

std::optional<AskedGrammar> ResponseFormat(RequestFields& fields) {
  const json::object* object = fields.Object("response_format");
  if (object == nullptr) return std::nullopt;
  RequestFields format(*object, fields.error(), "response_format");
  const std::string type = format.String("type", "");
  if (type == "text") return std::nullopt;
  if (type == "json_object") return AskedGrammar{{GrammarKind::kJsonObject, ""}, "response_format"};
  if (type == "structural_tag") {
    return StructuralTag(fields, "response_format", json::serialize(*object));
  }
  if (type != "json_schema") {
    format.Fail("type",
                "response_format.type must be \"text\", \"json_object\", \"json_schema\" or "
                "\"structural_tag\"");
    return std::nullopt;
  }
  const json::object* inner = format.Object("json_schema");
  if (inner == nullptr) {
    format.Fail("json_schema", "response_format.json_schema is required: {\"name\", \"schema\"}");
    return std::nullopt;
  }
  RequestFields described(*inner, fields.error(), "response_format.json_schema");
  if (described.String("name", "").empty()) {
    described.Fail("name", described.Name("name") + " is required: any name");
  }
  const json::value* schema = described.Find("schema");
  if (schema == nullptr) {
    described.Fail("schema", "response_format.json_schema.schema is required");
    return std::nullopt;
  }
  return Schema(*schema, described.Bool("strict", false), described.Name("schema"));
}

constexpr std::string_view kStructuredKinds[] = {"json",    "json_object", "regex",
                                                 "grammar", "choice",      "structural_tag"};

// vLLM's: one of these.
std::optional<AskedGrammar> StructuredOutputs(RequestFields& fields) {
  const json::object* object = fields.Object("structured_outputs");
  if (object == nullptr) return std::nullopt;
  RequestFields inner(*object, fields.error(), "structured_outputs");
  std::optional<AskedGrammar> asked;
  for (const auto& [key, value] : *object) {
    if (value.is_null()) continue;
    if (key == "backend" && (value == json::value("auto") || value == json::value("xgrammar"))) {
      continue;  // who does it anyway
    }
    const bool known =
        std::ranges::find(kStructuredKinds, std::string_view(key)) != std::end(kStructuredKinds);
    if (key == "backend") {
      inner.Fail(key, fmt::format("{} is not supported; it may only be \"auto\" or \"xgrammar\"",
                                  inner.Name(key)));
      continue;
    }
    if (!known || key == "json_object") {  // a switch
      if (value == json::value(false)) continue;
      if (!known) {
        inner.Fail(key, fmt::format("{} is not supported: structured_outputs takes json, "
                                    "json_object, regex, choice, grammar or structural_tag",
                                    inner.Name(key)));
        continue;
      }
      if (!inner.Bool("json_object", false)) continue;
    }
    if (asked) inner.Fail(key, "structured_outputs may ask for one thing only");
    if (key == "json") {
      asked = Schema(value, /*strict=*/false, inner.Name("json"));
    } else if (key == "json_object") {
      asked = AskedGrammar{{GrammarKind::kJsonObject, ""}, inner.Name("json_object")};
    } else if (key == "regex") {
      asked = Text(inner, "regex", GrammarKind::kRegex);
    } else if (key == "grammar") {
      asked = Text(inner, "grammar", GrammarKind::kEbnf);
    } else if (key == "choice") {
      asked = Choice(inner, "choice");
    } else {
      asked = StructuralTag(inner, "structural_tag", inner.String("structural_tag", ""));
    }
  }
  return asked;
}

// Fields of their own: vLLM's older names, and SGLang's.
std::optional<AskedGrammar> ReadOwn(RequestFields& fields, const char* key) {
  const std::string_view name = key;
  if (fields.Find(key) == nullptr) return std::nullopt;
  if (name == "guided_json" || name == "json_schema") {
    return Schema(*fields.Find(key), /*strict=*/false, key);
  }
  if (name == "guided_choice") return Choice(fields, key);
  const bool regex = name == "guided_regex" || name == "regex";
  return Text(fields, key, regex ? GrammarKind::kRegex : GrammarKind::kEbnf);
}

}  // namespace

std::optional<AskedGrammar> ReadGrammar(RequestFields& fields) {
  std::optional<AskedGrammar> asked = ResponseFormat(fields);
  const auto take = [&](std::optional<AskedGrammar> other, const char* key) {
    if (!other) return;
    if (asked) {
      fields.Fail(key, fmt::format("{} cannot be held to beside {}: ask for one of them", key,
                                   asked->param));
    }
    asked = std::move(other);
  };
  take(StructuredOutputs(fields), "structured_outputs");
  for (const char* key : {"guided_json", "guided_regex", "guided_choice", "guided_grammar",
                          "json_schema", "regex", "ebnf"}) {
    take(ReadOwn(fields, key), key);
  }
  if (!asked) return std::nullopt;
  // An answer ends where its grammar does.
  if (fields.Bool("ignore_eos", false)) {
    fields.Fail("ignore_eos", fmt::format("ignore_eos contradicts {}", asked->param));
  }
  if (fields.Integer("min_tokens", 0, 0, INT32_MAX) > 0) {
    fields.Fail("min_tokens", fmt::format("min_tokens contradicts {}", asked->param));
  }
  return asked;
}

}  // namespace fathom
