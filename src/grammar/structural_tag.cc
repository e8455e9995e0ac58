#include "grammar/structural_tag.h"

#include <fmt/format.h>

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

bool IsEmpty(const json::value& value) {
  return value == json::value("");
}

// Each tag begins with one of the triggers, and each trigger begins one.
Status CheckTriggers(const json::object& format, const std::string& at) {
  const json::array& triggers = format.at("triggers").get_array();
  const json::array& tags = format.at("tags").get_array();
  const auto begins = [](const json::value& trigger, const json::value& tag) {
    return tag.at("begin").get_string().starts_with(std::string_view(trigger.get_string()));
  };
  for (size_t i = 0; i < tags.size(); ++i) {
    const auto of = std::ranges::count_if(
        triggers, [&](const json::value& trigger) { return begins(trigger, tags[i]); });
    if (of == 1) continue;
    return InvalidArgument("{}/tags[{}]/begin must begin with one of the triggers{}", at, i,
                           of == 0 ? "" : ", and begins with several");
  }
  for (size_t i = 0; i < triggers.size(); ++i) {
    if (std::ranges::any_of(tags, [&](const auto& tag) { return begins(triggers[i], tag); }))
      continue;
    return InvalidArgument("{}/triggers[{}] begins no tag; leave it out", at, i);
  }
  return {};
}

// What the parts of a format say together.
Status CheckWhole(const json::object& format, std::string_view type, const std::string& at) {
  if (type == "triggered_tags") return CheckTriggers(format, at);
  if (type == "repeat" && format.at("min").get_int64() > format.at("max").get_int64()) {
    return InvalidArgument("{}/min is above max", at);
  }
  if (type != "tag") return {};
  const json::value& end = format.at("end");
  const json::value& inner = format.at("content").at("type");
  const bool endless = inner == "any_text" || inner == "triggered_tags";
  const bool ends = end.is_array() ? !std::ranges::all_of(end.get_array(), IsEmpty) : !IsEmpty(end);
  return ends || !endless ? Status()
                          : InvalidArgument("{}/end must not be empty: free text ends there", at);
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
    return CheckWhole(*format, shape->type, at);
  }

 private:
  Status ReadPart(std::string_view key, json::value& part, const std::string& at) {
    const auto must = [&](bool is, std::string_view what) {
      return is ? Status() : InvalidArgument("{} must be {}", at, what);
    };
    if (key == "content") return Read(part, at);
    if (key == "elements" || key == "tags") return ReadList(part, key == "tags", at);
    if (key == "triggers" || key == "excludes") {
      return must(AreStrings(part) && std::ranges::none_of(part.get_array(), IsEmpty),
                  "a list of strings that are not empty");
    }
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

// The limits of what a format holds. Places are named if `at` is not empty.
Status CheckFormat(const json::value& format, const std::string& at) {
  const json::object* object = format.if_object();
  if (object == nullptr) return {};
  const auto within = [&](std::string_view key) {
    return at.empty() ? at : fmt::format("{}/{}", at, key);
  };
  if (const json::value* schema = object->if_contains("json_schema")) {
    const std::string text = json::serialize(*schema);
    if (text.size() > kMaxSchemaBytes) {
      return InvalidArgument("a schema has {} bytes: at most {} are possible", text.size(),
                             kMaxSchemaBytes);
    }
    const Status status = CheckSchema(text, /*strict=*/true);
    return status.ok() || at.empty() ? status : status.WithContext(within("json_schema"));
  }
  if (const json::value* pattern = object->if_contains("pattern")) {
    return CheckSchemaPattern(std::string_view(pattern->as_string()),
                              at.empty() ? "a pattern" : within("pattern"), PatternUse::kText);
  }
  if (const json::value* grammar = object->if_contains("grammar")) {
    const Status status = CheckEbnf(std::string_view(grammar->as_string()));
    return status.ok() || at.empty() ? status : status.WithContext(within("grammar"));
  }
  if (const json::value* content = object->if_contains("content")) {
    return CheckFormat(*content, within("content"));
  }
  for (const char* key : {"elements", "tags"}) {
    const json::value* parts = object->if_contains(key);
    if (parts == nullptr) continue;
    for (size_t i = 0; i < parts->as_array().size(); ++i) {
      TRY(CheckFormat(parts->get_array()[i],
                      at.empty() ? at : fmt::format("{}/{}[{}]", at, key, i)));
    }
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

Status CheckStructuralTag(std::string_view tag, bool own) {
  const json::value root = TRY(ParseTag(tag));
  return CheckFormat(root.at("format"), own ? "" : "format");
}

}  // namespace fathom
