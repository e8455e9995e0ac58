#include "base/status.h"

namespace fathom {

std::string_view Name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid argument";
    case StatusCode::kNotFound: return "not found";
    case StatusCode::kUnimplemented: return "not supported";
    case StatusCode::kResourceExhausted: return "resource exhausted";
    case StatusCode::kUnavailable: return "unavailable";
    case StatusCode::kCancelled: return "cancelled";
    case StatusCode::kDataLoss: return "damaged data";
    case StatusCode::kInternal: return "internal error";
  }
  return "unknown";
}

std::string Status::ToString() const {
  return ok() ? "ok" : fmt::format("{}: {}", Name(code_), message_);
}

Status Status::WithContext(std::string_view context) const {
  CHECK(!ok(), "context for an OK status");
  return Status(code_, fmt::format("{}: {}", context, message_));
}

}  // namespace fathom
