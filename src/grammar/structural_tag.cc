#include "grammar/structural_tag.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <iterator>
#include <utility>

#include "grammar/grammar_limits.h"

namespace fathom {

namespace json = boost::json;

namespace {

constexpr size_t kMostAround = 16;  // levels of formats around a schema
constexpr int kMostFormats = 1000;  // of a tag
constexpr int64_t kMostRepeats = 1000;

// What a format must say, and what it may; the first key of one is a key of no other.
struct Shape {
  std::string_view type;
  std::array<std::string_view, 3> required;
  std::array<std::string_view, 3> optional;
};

constexpr Shape kShapes[] = {
    {"const_string", {"value"}, {}},
    {"json_schema", {"json_schema"}, {"style"}},
    {"regex", {"pattern"}, {}},
    {"grammar", {"grammar"}, {}},
    {"any_text", {}, {"excludes"}},
    {"sequence", {"elements"}, {}},
    {"or", {"elements"}, {}},
    {"optional", {"content"}, {}},
    {"plus", {"content"}, {}},
    {"star", {"content"}, {}},
    {"repeat", {"content", "min", "max"}, {}},
    {"tag", {"begin", "content", "end"}, {}},
    {"triggered_tags", {"triggers", "tags"}, {"at_least_one", "stop_after_first", "excludes"}},
    {"tags_with_separator", {"tags", "separator"}, {"at_least_one", "stop_after_first"}},
};

bool AreStrings(const json::value& value) {
  const json::array* list = value.if_array();
  return list != nullptr && !list->empty() &&
         std::ranges::all_of(*list, [](const json::value& one) { return one.is_string(); });
}

// Reads the formats of a tag, and bounds the spaces between the parts of JSON in them.
class TagReader {
 public:
  Status Read(json::value& value, const std::string& at) {
    json::object* format = value.if_object();
    if (format == nullptr) return InvalidArgument("{} must be an object", at);
    if (++formats_ > kMostFormats)
      return InvalidArgument("it has more than {} parts", kMostFormats);
    const json::value* type = format->if_contains("type");
    const auto* shape = std::ranges::find_if(
        kShapes, [&](const Shape& s) { return type != nullptr && *type == json::value(s.type); });
    if (shape == std::end(kShapes)) {
      return InvalidArgument(
          "{}/type must be one of const_string, json_schema, regex, grammar, "
          "any_text, sequence, or, optional, plus, star, repeat, tag, "
          "triggered_tags and tags_with_separator",
          at);
    }
    for (const std::string_view key : shape->required) {
      if (!key.empty() && !format->contains(key)) {
        return InvalidArgument("{}/{} is required", at, key);
      }
    }
    for (auto& [key, part] : *format) {
      if (key == "type") continue;
      const auto is_key = [&key = key](std::string_view known) {
        return known == std::string_view(key);
      };
      if (std::ranges::none_of(shape->required, is_key) &&
          std::ranges::none_of(shape->optional, is_key)) {
        return InvalidArgument("{}/{} is not known", at, std::string_view(key));
      }
      TRY(ReadPart(key, part, at + "/" + std::string(std::string_view(key))));
    }
    if (format->erase("style") > 0 || shape->type == "json_schema") {
      (*format)["max_whitespace_cnt"] = kMaxWhitespace;
    }
    return {};
  }

 private:
  Status ReadPart(std::string_view key, json::value& part, const std::string& at) {
    const auto must = [&](bool is, std::string_view what) {
      return is ? Status() : InvalidArgument("{} must be {}", at, what);
    };
    if (key == "content") return Read(part, at);
    if (key == "elements" || key == "tags") return ReadList(part, key == "tags", at);
    if (key == "triggers" || key == "excludes") return must(AreStrings(part), "a list of strings");
    if (key == "end") return must(part.is_string() || AreStrings(part), "a string, or some");
    if (key == "at_least_one" || key == "stop_after_first") {
      return must(part.is_bool(), "true or false");
    }
    if (key == "json_schema") return must(part.is_object() || part.is_bool(), "a schema");
    if (key == "style") return must(part == json::value("json"), "\"json\"");
    if (key == "min" || key == "max") {
      const int64_t* count = part.if_int64();
      return must(count != nullptr && *count >= 0 && *count <= kMostRepeats,
                  fmt::format("between 0 and {}", kMostRepeats));
    }
    return must(part.is_string(), "a string");
  }

  Status ReadList(json::value& list, bool tags, const std::string& at) {
    json::array* formats = list.if_array();
    if (formats == nullptr || formats->empty()) {
      return InvalidArgument("{} must be a list of at least one format", at);
    }
    for (size_t i = 0; i < formats->size(); ++i) {
      json::object* format = (*formats)[i].if_object();
      if (tags && format != nullptr) format->emplace("type", "tag");
      if (tags && format != nullptr && format->at("type") != json::value("tag")) {
        return InvalidArgument("{}[{}]/type must be \"tag\"", at, i);
      }
      TRY(Read((*formats)[i], fmt::format("{}[{}]", at, i)));
    }
    return {};
  }

  int formats_ = 0;
};

// vLLM's older form as a format.
Result<json::value> FormatOfStructures(const json::object& tag) {
  const json::value* structures = tag.if_contains("structures");
  const json::value* triggers = tag.if_contains("triggers");
  if (structures == nullptr || !structures->is_array() || triggers == nullptr) {
    return InvalidArgument("it must have a format, or structures and triggers");
  }
  json::array tags;
  for (const json::value& structure : structures->get_array()) {
    const json::object* one = structure.if_object();
    const auto has = [&](const char* key) { return one != nullptr && one->contains(key); };
    if (!has("begin") || !has("schema") || !has("end")) {
      return InvalidArgument("structures[{}] must have begin, schema and end", tags.size());
    }
    tags.push_back({{"type", "tag"},
                    {"begin", one->at("begin")},
                    {"content", {{"type", "json_schema"}, {"json_schema", one->at("schema")}}},
                    {"end", one->at("end")}});
  }
  return json::value{{"type", "triggered_tags"}, {"triggers", *triggers}, {"tags", tags}};
}

// The limits of what a format holds.
Status CheckFormat(const json::value& format) {
  const json::object* object = format.if_object();
  if (object == nullptr) return {};
  if (const json::value* schema = object->if_contains("json_schema")) {
    const std::string text = json::serialize(*schema);
    if (text.size() > kMaxSchemaBytes) {
      return InvalidArgument("a schema has {} bytes: at most {} are possible", text.size(),
                             kMaxSchemaBytes);
    }
    return CheckSchema(text, /*strict=*/true);
  }
  if (const json::value* pattern = object->if_contains("pattern")) {
    return CheckSchemaPattern(std::string_view(pattern->as_string()), "a pattern");
  }
  if (const json::value* grammar = object->if_contains("grammar")) {
    return CheckEbnf(std::string_view(grammar->as_string()));
  }
  if (const json::value* content = object->if_contains("content")) return CheckFormat(*content);
  for (const char* key : {"elements", "tags"}) {
    const json::value* parts = object->if_contains(key);
    if (parts == nullptr) continue;
    for (const json::value& part : parts->as_array()) TRY(CheckFormat(part));
  }
  return {};
}

Result<json::value> ParseTag(std::string_view text) {
  boost::system::error_code error;
  json::parse_options options;
  options.max_depth = kMaxSchemaDepth + kMostAround;
  json::value root = json::parse(text, error, {}, options);
  if (error == json::error::too_deep) return InvalidArgument("it is nested too deeply");
  if (error || !root.is_object()) return InvalidArgument("it must be a JSON object");
  return root;
}

}  // namespace

Result<std::string> ReadStructuralTag(std::string_view text) {
  if (text.size() > kMaxSchemaBytes) {
    return InvalidArgument("it has {} bytes: at most {} are possible", text.size(),
                           kMaxSchemaBytes);
  }
  const json::value root = TRY(ParseTag(text));
  const json::object& tag = root.get_object();
  const json::value* given = tag.if_contains("format");
  json::value format = given != nullptr ? *given : TRY(FormatOfStructures(tag));
  TRY(TagReader().Read(format, given != nullptr ? "format" : "structures"));
  return json::serialize(json::object{{"type", "structural_tag"}, {"format", std::move(format)}});
}

Status CheckStructuralTag(std::string_view tag) {
  const json::value root = TRY(ParseTag(tag));
  return CheckFormat(root.at("format"));
}

}  // namespace fathom
