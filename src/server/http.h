// HTTP messages as plain structs.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/api_error.h"

namespace fathom {

class ClientAccount;

struct HttpRequest {
  std::string method;
  std::string path;  // of the target, without its query
  std::string content_type;
  std::string authorization;
  std::string api_key;         // X-Api-Key
  std::string host;            // as the client calls this server: name and port
  std::string origin;          // of the web page that sends it; "" from other programs
  std::string wanted_headers;  // Access-Control-Request-Headers
  std::string known_tags;      // If-None-Match: of what the client has already
  std::string id;              // X-Request-Id: the client's, if it is fit to print, or a new one
  std::string address;         // it comes from
  std::string owner;           // of what it leaves here: its key, or its address
  std::shared_ptr<ClientAccount> client;  // who asks; null for what says how the server is
  std::string body;
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::shared_ptr<const std::string> shared;  // instead of `body`: many answers' one
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
};

inline HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response{.status = error.status, .body = ToJson(error)};
  if (error.status == 429 || error.status == 503) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  if (error.status == 504) response.headers.emplace_back("X-Should-Retry", "false");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace fathom
