// Typed, checked access to the fields of a JSON object that came over the network.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"

namespace fathom {

struct NumberRange {
  double min, max;
  bool above_min = false;  // `min` itself is outside
};

// Reads fields; the first error stays, and what is read after it is of no use. A null counts as
// absent, as the OpenAI clients mean it.
class RequestFields {
 public:
  // `object` and `error` must outlive this. `path` is the object's own name, for messages.
  RequestFields(const boost::json::object& object, std::optional<ApiError>* error,
                std::string path = "")
      : object_(object), error_(error), path_(std::move(path)) {}

  const boost::json::value* Find(std::string_view key) const;
  bool Bool(std::string_view key, bool fallback);
  double Number(std::string_view key, double fallback, NumberRange range);
  int64_t Integer(std::string_view key, int64_t fallback, int64_t min, int64_t max);
  std::optional<int64_t> MaybeInteger(std::string_view key, int64_t min, int64_t max);
  std::string String(std::string_view key, std::string fallback);
  std::string RequiredString(std::string_view key);
  const boost::json::object* Object(std::string_view key);
  const boost::json::array* Array(std::string_view key);
  // Reads the objects of a list, if there is one, in order up to the first error.
  void EachObject(std::string_view key, const std::function<void(RequestFields&)>& read);

  // The same of a list in `own`, which is what this reads: each is freed once it was read.
  void TakeObjects(boost::json::object& own, std::string_view key,
                   const std::function<void(RequestFields&, boost::json::object&)>& read);

  void Fail(std::string_view key, std::string message, std::string code = "");
  // "messages[2].content" for "content"
  std::string Name(std::string_view key) const;
  bool failed() const { return error_->has_value(); }
  std::optional<ApiError>* error() { return error_; }
  const boost::json::storage_ptr& storage() const { return object_.storage(); }

 private:
  const boost::json::object& object_;
  std::optional<ApiError>* error_;
  std::string path_;
};

// `text`, a string, for what lives in `storage`: moved if it is long, and copied if it is short, as
// it would keep its neighbours' memory from being freed.
boost::json::value TakeText(boost::json::value& text, const boost::json::storage_ptr& storage);

// An integer, written as one or as a float without a fraction.
std::optional<int64_t> AsInteger(const boost::json::value& value);
// At most 64 bytes of the value's JSON, for messages.
std::string Excerpt(const boost::json::value& value);

}  // namespace fathom
