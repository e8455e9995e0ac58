#include "server/json_fields.h"

#include <algorithm>
#include <cmath>

namespace fathom {

namespace json = boost::json;

std::optional<int64_t> AsInteger(const json::value& value) {
  if (const int64_t* integer = value.if_int64()) return *integer;
  if (const double* number = value.if_double()) {
    if (std::abs(*number) <= 0x1p53 && std::trunc(*number) == *number) return *number;
  }
  return std::nullopt;
}

std::string Excerpt(const json::value& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (value.is_double()) return fmt::format("{}", value.get_double());
  if (const json::string* string = value.if_string(); string != nullptr && string->size() > 64) {
    size_t end = 60;
    while (end > 0 && ((*string)[end] & 0xC0) == 0x80) --end;
    return json::serialize(json::value(std::string_view(*string).substr(0, end))) + "...";
  }
  return json::serialize(value);
}

const json::value* RequestFields::Find(std::string_view key) const {
  const json::value* value = object_.if_contains(key);
  return value != nullptr && value->is_null() ? nullptr : value;
}

std::string RequestFields::Name(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

void RequestFields::Fail(std::string_view key, std::string message, std::string code) {
  if (!failed()) *error_ = BadParameter(Name(key), std::move(message), std::move(code));
}

bool RequestFields::Bool(std::string_view key, bool fallback) {
  const json::value* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->is_bool()) return value->get_bool();
  Fail(key, fmt::format("{} must be true or false, not {}", Name(key), Excerpt(*value)));
  return fallback;
}

double RequestFields::Number(std::string_view key, double fallback, NumberRange range) {
  const json::value* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->is_number()) {
    const double number = value->to_number<double>();
    const bool low = range.above_min ? number <= range.min : number < range.min;
    if (!low && number <= range.max) return number;
  }
  Fail(key, range.above_min ? fmt::format("{} must be a number above {} and at most {}, not {}",
                                          Name(key), range.min, range.max, Excerpt(*value))
                            : fmt::format("{} must be a number between {} and {}, not {}",
                                          Name(key), range.min, range.max, Excerpt(*value)));
  return fallback;
}

std::optional<int64_t> RequestFields::MaybeInteger(std::string_view key, int64_t min, int64_t max) {
  const json::value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> integer = AsInteger(*value);
  if (integer && *integer >= min && *integer <= max) return integer;
  Fail(key, fmt::format("{} must be an integer between {} and {}, not {}", Name(key), min, max,
                        Excerpt(*value)));
  return std::nullopt;
}

int64_t RequestFields::Integer(std::string_view key, int64_t fallback, int64_t min, int64_t max) {
  return MaybeInteger(key, min, max).value_or(fallback);
}

std::string RequestFields::String(std::string_view key, std::string fallback) {
  const json::value* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->is_string()) return std::string(std::string_view(value->get_string()));
  Fail(key, fmt::format("{} must be a string, not {}", Name(key), Excerpt(*value)));
  return fallback;
}

std::string RequestFields::RequiredString(std::string_view key) {
  if (Find(key) == nullptr) Fail(key, Name(key) + " is required");
  return String(key, "");
}

const json::object* RequestFields::Object(std::string_view key) {
  const json::value* value = Find(key);
  if (value == nullptr || value->is_object()) return value ? &value->get_object() : nullptr;
  Fail(key, fmt::format("{} must be an object, not {}", Name(key), Excerpt(*value)));
  return nullptr;
}

const json::array* RequestFields::Array(std::string_view key) {
  const json::value* value = Find(key);
  if (value == nullptr || value->is_array()) return value ? &value->get_array() : nullptr;
  Fail(key, fmt::format("{} must be a list, not {}", Name(key), Excerpt(*value)));
  return nullptr;
}

void RequestFields::EachObject(std::string_view key,
                               const std::function<void(RequestFields&)>& read) {
  const json::array* list = Array(key);
  for (size_t i = 0; list != nullptr && i < list->size() && !failed(); ++i) {
    const json::value& value = (*list)[i];
    std::string name = fmt::format("{}[{}]", Name(key), i);
    if (!value.is_object()) {
      return Fail(key, fmt::format("{} must be an object, not {}", name, Excerpt(value)));
    }
    RequestFields entry(value.get_object(), error_, std::move(name));
    read(entry);
  }
}

void RequestFields::TakeObjects(json::object& own, std::string_view key,
                                const std::function<void(RequestFields&, json::object&)>& read) {
  size_t i = 0;
  EachObject(key, [&](RequestFields& entry) {
    json::value& value = own.at(key).get_array()[i++];
    read(entry, value.get_object());
    value = nullptr;
  });
}

json::value TakeText(json::value& text, const json::storage_ptr& storage) {
  constexpr size_t kMovedBytes = size_t{16} << 10;
  if (text.get_string().size() < kMovedBytes) return json::value(text, storage);
  return json::value(std::move(text), storage);
}

}  // namespace fathom
