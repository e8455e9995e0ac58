#include "tokenizer/json_at.h"

#include <boost/json.hpp>

#include "base/mmap.h"

namespace fathom {
namespace json = boost::json;
namespace {

constexpr size_t kMaxDepth = 64;

std::string_view KindName(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null: return "null";
    case json::kind::bool_: return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
    case json::kind::double_: return "a number";
    case json::kind::string: return "a string";
    case json::kind::array: return "an array";
    case json::kind::object: return "an object";
  }
  return "?";
}

}  // namespace

Result<json::value> ReadJsonFile(const std::string& path, size_t max_bytes) {
  const std::string text = TRY(ReadFile(path, max_bytes));
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::stream_parser parser({}, options);
  boost::system::error_code error;
  const size_t parsed = parser.write(text, error);
  if (!error) parser.finish(error);
  if (error) {
    return InvalidArgument("{} is not valid JSON ({} near byte {}): fetch the file again", path,
                           error.message(), parsed);
  }
  return parser.release();
}

JsonAt::JsonAt(const json::value* value, std::string path)
    : value_(value != nullptr && value->is_null() ? nullptr : value), path_(std::move(path)) {}

JsonAt JsonAt::operator[](std::string_view member) const {
  const json::object* object = value_ == nullptr ? nullptr : value_->if_object();
  const json::value* value = object == nullptr ? nullptr : object->if_contains(member);
  return {value, fmt::format("{}{}{}", path_, path_.ends_with(':') ? ' ' : '.', member)};
}

Status JsonAt::Expected(std::string_view what) const {
  return InvalidArgument("{} should be {}, but is {}", path_, what,
                         present() ? KindName(*value_) : "absent");
}

Result<std::string_view> JsonAt::String() const {
  if (!present() || !value_->is_string()) return Expected("a string");
  const json::string& text = value_->get_string();
  return std::string_view(text.data(), text.size());
}

Result<bool> JsonAt::Bool(bool if_absent) const {
  if (!present()) return if_absent;
  if (!value_->is_bool()) return Expected("true or false");
  return value_->get_bool();
}

Result<int64_t> JsonAt::Integer() const {
  if (!present() || !value_->is_int64()) return Expected("an integer");
  return value_->get_int64();
}

Result<std::vector<JsonAt>> JsonAt::Array() const {
  if (!present() || !value_->is_array()) return Expected("an array");
  std::vector<JsonAt> items;
  for (const json::value& item : value_->get_array()) {
    items.emplace_back(&item, fmt::format("{}[{}]", path_, items.size()));
  }
  return items;
}

Result<const json::object*> JsonAt::Object() const {
  if (!present() || !value_->is_object()) return Expected("an object");
  return &value_->get_object();
}

}  // namespace fathom
