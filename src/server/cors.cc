#include "server/cors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace fathom {
namespace {

constexpr size_t kMaxHeaderNames = 4096;  // bytes

bool IsHeaderList(std::string_view names) {
  return !names.empty() && names.size() <= kMaxHeaderNames &&
         std::all_of(names.begin(), names.end(), [](unsigned char c) {
           return std::isalnum(c) || c == '-' || c == '_' || c == ',' || c == ' ';
         });
}

}  // namespace

bool CorsPolicy::any() const {
  return std::find(allowed_.begin(), allowed_.end(), "*") != allowed_.end();
}

bool CorsPolicy::Allows(std::string_view origin) const {
  return any() || std::find(allowed_.begin(), allowed_.end(), origin) != allowed_.end();
}

std::vector<std::pair<std::string, std::string>> CorsPolicy::Headers(
    std::string_view origin) const {
  if (origin.empty() || !Allows(origin)) return {};
  std::vector<std::pair<std::string, std::string>> headers = {
      {"Access-Control-Allow-Origin", any() ? "*" : std::string(origin)},
      {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"}};
  if (!any()) headers.emplace_back("Vary", "Origin");
  return headers;
}

HttpResponse CorsPolicy::Preflight(const HttpRequest& head, std::string methods) const {
  HttpResponse response{.content_type = "text/plain"};
  if (head.origin.empty()) {
    response.headers.emplace_back("Allow", std::move(methods));
    return response;
  }
  if (!Allows(head.origin)) {
    return ErrorResponse({403,
                          "Web pages of this origin may not use this server: fathom serve "
                          "--allowed-origins ORIGIN lets them.",
                          "permission_error", "", "origin_not_allowed"});
  }
  response.headers.emplace_back("Access-Control-Allow-Methods", std::move(methods));
  if (IsHeaderList(head.wanted_headers)) {
    response.headers.emplace_back("Access-Control-Allow-Headers", head.wanted_headers);
  }
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  return response;
}

}  // namespace fathom
