#include "server/cors.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

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

std::string Lowered(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

// Of a Host header, without the port.
std::string NameOf(std::string_view host) {
  const size_t end = host.starts_with('[') ? host.find(']') : host.rfind(':');
  return Lowered(host.starts_with('[') && end != host.npos ? host.substr(1, end - 1)
                                                           : host.substr(0, end));
}

bool IsLocalName(std::string_view name) {
  return name == "localhost" || name.ends_with(".localhost");
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
      {"Access-Control-Expose-Headers",
       "X-Request-Id, Retry-After, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
       "x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, "
       "x-ratelimit-reset-tokens"}};
  if (!any()) headers.emplace_back("Vary", "Origin");
  return headers;
}

ApiError CorsPolicy::NotAllowed() {
  return {403,
          "Web pages of this origin may not use this server: fathom serve --allowed-origins ORIGIN "
          "lets them.",
          "permission_error", "", "origin_not_allowed"};
}

HttpResponse CorsPolicy::Preflight(const HttpRequest& head, std::string methods) const {
  HttpResponse response{.content_type = "text/plain"};
  if (head.origin.empty()) {
    response.headers.emplace_back("Allow", std::move(methods));
    return response;
  }
  if (!Allows(head.origin)) {
    return ErrorResponse(NotAllowed());
  }
  response.headers.emplace_back("Access-Control-Allow-Methods", std::move(methods));
  if (IsHeaderList(head.wanted_headers)) {
    response.headers.emplace_back("Access-Control-Allow-Headers", head.wanted_headers);
  }
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  return response;
}

bool HostPolicy::IsGiven(std::string_view name) const {
  return std::find(allowed_.begin(), allowed_.end(), name) != allowed_.end();
}

bool HostPolicy::Allows(std::string_view host) const {
  if (host.empty() || (!loopback_ && allowed_.empty())) return true;
  const std::string name = NameOf(host);
  if (loopback_) {
    in_addr ipv4{};
    if (IsLocalName(name) || name == "::1") return true;
    if (inet_pton(AF_INET, name.c_str(), &ipv4) == 1 &&
        ntohl(ipv4.s_addr) >> 24 == IN_LOOPBACKNET) {
      return true;
    }
  }
  return IsGiven("*") || IsGiven(name);
}

bool HostPolicy::IsOurs(std::string_view host) const {
  const std::string name = NameOf(host);
  in_addr ipv4{};
  in6_addr ipv6{};
  return IsLocalName(name) || IsGiven(name) || inet_pton(AF_INET, name.c_str(), &ipv4) == 1 ||
         inet_pton(AF_INET6, name.c_str(), &ipv6) == 1;
}

bool IsSameOrigin(std::string_view origin, std::string_view host) {
  const size_t scheme = origin.find("://");
  return scheme != origin.npos && !host.empty() &&
         Lowered(origin.substr(scheme + 3)) == Lowered(host);
}

}  // namespace fathom
