#include "checkpoint/json.h"

#include <cmath>
#include <exception>

namespace fathom {
namespace {

constexpr size_t kMaxDepth = 16;
constexpr size_t kMaxTokens = 64;

std::optional<int64_t> ToInt(const boost::json::value& value) {
  boost::json::error_code error;
  const auto number = value.to_number<int64_t>(error);
  if (error || value.is_double()) return std::nullopt;
  return number;
}

}  // namespace

Result<boost::json::object> ParseJsonObject(std::string_view name, std::string_view text,
                                            boost::json::storage_ptr storage) {
  try {
    boost::json::parse_options options;
    options.max_depth = kMaxDepth;
    boost::json::error_code error;
    boost::json::value value = boost::json::parse(text, error, std::move(storage), options);
    if (error) return DataLoss("{}: not valid JSON ({})", name, error.message());
    if (!value.is_object()) return DataLoss("{}: not a JSON object", name);
    return std::move(value.get_object());
  } catch (const std::exception& e) {  // a length limit or memory
    return ResourceExhausted("{}: cannot parse the JSON: {}", name, e.what());
  }
}

const boost::json::value* Fields::Find(std::string_view key) const {
  const boost::json::value* value = object_.if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const boost::json::value* Fields::Require(std::string_view key) {
  const boost::json::value* value = Find(key);
  if (value == nullptr) problems_.Add("{}{} is missing", prefix_, key);
  return value;
}

int32_t Fields::Int(std::string_view key, int32_t low, int32_t high) {
  return Require(key) == nullptr ? low : Int(key, low, high, low);
}

int32_t Fields::Int(std::string_view key, int32_t low, int32_t high, int32_t fallback) {
  const boost::json::value* value = Find(key);
  if (value == nullptr) return fallback;
  const std::optional<int64_t> number = ToInt(*value);
  if (number.has_value() && *number >= low && *number <= high) return static_cast<int32_t>(*number);
  problems_.Add("{}{} must be an integer from {} to {}", prefix_, key, low, high);
  return fallback;
}

float Fields::Float(std::string_view key, float low, float high) {
  return Require(key) == nullptr ? low : Float(key, low, high, low);
}

float Fields::Float(std::string_view key, float low, float high, float fallback) {
  return OptionalFloat(key, low, high).value_or(fallback);
}

std::optional<float> Fields::OptionalFloat(std::string_view key, float low, float high) {
  const boost::json::value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  boost::json::error_code error;
  const double number = value->to_number<double>(error);
  if (!error && number >= low && number <= high) return static_cast<float>(number);
  problems_.Add("{}{} must be a number from {} to {}", prefix_, key, low, high);
  return std::nullopt;
}

bool Fields::Bool(std::string_view key, bool fallback) {
  const boost::json::value* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->is_bool()) return value->get_bool();
  problems_.Add("{}{} must be true or false", prefix_, key);
  return fallback;
}

std::string_view Fields::String(std::string_view key, std::string_view fallback) {
  const boost::json::value* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->is_string()) return {value->get_string().data(), value->get_string().size()};
  problems_.Add("{}{} must be a string", prefix_, key);
  return fallback;
}

const boost::json::object* Fields::Object(std::string_view key) {
  const boost::json::value* value = Find(key);
  if (value == nullptr) return nullptr;
  if (value->is_object()) return &value->get_object();
  problems_.Add("{}{} must be an object", prefix_, key);
  return nullptr;
}

std::vector<TokenId> Fields::Tokens(std::string_view key, int32_t vocab_size) {
  const boost::json::value* value = Find(key);
  if (value == nullptr) return {};
  std::vector<TokenId> tokens;
  const auto add = [&](const boost::json::value& item) {
    const std::optional<int64_t> id = ToInt(item);
    if (!id.has_value() || *id < 0 || *id >= vocab_size) return false;
    tokens.push_back(TokenId{static_cast<int32_t>(*id)});
    return true;
  };
  bool good;
  if (const boost::json::array* list = value->if_array()) {
    good = list->size() <= kMaxTokens;
    for (const boost::json::value& item : *list) good = good && add(item);
  } else {
    good = add(*value);
  }
  if (good) return tokens;
  problems_.Add("{}{} must be a token id below vocab_size ({}), or a list of at most {}", prefix_,
                key, vocab_size, kMaxTokens);
  return {};
}

}  // namespace fathom
