#include "server/api_error.h"

#include <boost/json.hpp>

namespace fathom {

namespace json = boost::json;

ApiError EngineError(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnimplemented: return {.status = 400, .message = status.message()};
    case StatusCode::kResourceExhausted:
      return {429, status.message(), "rate_limit_error", "", "queue_full"};
    case StatusCode::kCancelled:
    case StatusCode::kUnavailable:
      return {503, status.message(), "service_unavailable_error", "", "unavailable"};
    default: return {500, status.message(), "server_error", "", "internal_error"};
  }
}

ApiError TooLong(int timeout_ms) {
  return {504,
          fmt::format("The request took more than {} s, which is all that one may take here: ask "
                      "for fewer tokens.",
                      timeout_ms / 1000.0),
          "timeout_error", "", "request_timeout"};
}

std::string ToJson(const ApiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? json::value(nullptr) : json::value(text);
  };
  return json::serialize(json::object{{"error",
                                       {{"message", error.message},
                                        {"type", error.type},
                                        {"param", or_null(error.param)},
                                        {"code", or_null(error.code)}}}});
}

}  // namespace fathom
