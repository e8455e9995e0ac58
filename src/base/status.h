// Errors that are expected: a bad request, a bad file, a full queue. A bug is a CHECK (check.h).
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace fathom {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the caller's input is wrong; the message says how to mend it
  kNotFound,           // a file, a name or a next token does not exist
  kUnimplemented,      // meaningful, but not supported
  kResourceExhausted,  // a bound was reached: a full queue, memory, a step limit
  kUnavailable,        // shutting down or not ready
  kCancelled,          // the caller went away
  kDataLoss,           // a file that contradicts itself
  kInternal,           // a fault of a request's numbers, or of the device
};

std::string_view Name(StatusCode code);

// An error code with a sentence for the user. An OK status has no message and allocates nothing.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  std::string ToString() const;

  // The same error with `context` and ": " before its message. REQUIRES: !ok().
  Status WithContext(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

#define FATHOM_STATUS_MAKER(Maker, code)                                               \
  template <class... Args>                                                             \
  Status Maker(fmt::format_string<Args...> format, Args&&... args) {                   \
    return Status(StatusCode::code, fmt::format(format, std::forward<Args>(args)...)); \
  }
FATHOM_STATUS_MAKER(InvalidArgument, kInvalidArgument)
FATHOM_STATUS_MAKER(NotFound, kNotFound)
FATHOM_STATUS_MAKER(Unimplemented, kUnimplemented)
FATHOM_STATUS_MAKER(ResourceExhausted, kResourceExhausted)
FATHOM_STATUS_MAKER(Unavailable, kUnavailable)
FATHOM_STATUS_MAKER(Cancelled, kCancelled)
FATHOM_STATUS_MAKER(DataLoss, kDataLoss)
FATHOM_STATUS_MAKER(Internal, kInternal)
#undef FATHOM_STATUS_MAKER

// A value, or the reason why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit on purpose
    CHECK(!status_.ok(), "a Result without a value needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // REQUIRES: ok().
  T& value() & { return Checked(), *value_; }
  const T& value() const& { return Checked(), *value_; }
  T&& value() && { return Checked(), *std::move(value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void Checked() const { CHECK(value_.has_value(), "value() of an error: {}", status_.ToString()); }

  std::optional<T> value_;
  Status status_;
};

namespace status_internal {
inline const Status& StatusOf(const Status& s) {
  return s;
}
template <class T>
const Status& StatusOf(const Result<T>& r) {
  return r.status();
}
inline void ValueOf(Status&&) {}
template <class T>
T ValueOf(Result<T>&& r) {
  return std::move(r).value();
}
}  // namespace status_internal

// TRY(expression): returns the error of a Status or Result from the calling function; otherwise
// yields the value. `int n = TRY(Parse(text));`  `TRY(Check(args));`
#define TRY(...)                                                                  \
  ({                                                                              \
    auto try_result = (__VA_ARGS__);                                              \
    if (!try_result.ok()) return ::fathom::status_internal::StatusOf(try_result); \
    ::fathom::status_internal::ValueOf(std::move(try_result));                    \
  })

}  // namespace fathom
