// Errors as the OpenAI API spells them.
#pragma once

#include <string>
#include <utility>

#include "base/status.h"

namespace fathom {

struct ApiError {
  int status = 400;  // HTTP
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;      // the request's parameter at fault; "" is null
  std::string code;       // "" is null
  int retry_after_s = 1;  // with 429 and 503
};

inline ApiError BadParameter(std::string param, std::string message, std::string code = "") {
  return {400, std::move(message), "invalid_request_error", std::move(param), std::move(code)};
}

// Of an error that the engine reports.
ApiError EngineError(const Status& status);

// A request took longer than --request-timeout. To send it again would take as long.
ApiError TooLong(int timeout_ms);

// {"error": {"message", "type", "param", "code"}}
std::string ToJson(const ApiError& error);

}  // namespace fathom
