#include "server/http_wire.h"

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <cctype>
#include <iterator>
#include <random>

#include "base/log.h"

namespace fathom {

namespace http = boost::beast::http;
using boost::system::error_code;

const char* Reason(int status) {
  switch (status) {
    case 200: return "OK";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Payload Too Large";
    case 415: return "Unsupported Media Type";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Internal Server Error";
  }
}

std::string RequestIdFrom(std::string_view given) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == ':';
  };
  if (!given.empty() && given.size() <= 128 && std::all_of(given.begin(), given.end(), plain)) {
    return std::string(given);
  }
  static thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{:016x}{:016x}", random(), random());
}

std::string HeaderLines(const std::vector<std::pair<std::string, std::string>>& headers) {
  std::string lines;
  for (const auto& [name, value] : headers) lines += fmt::format("{}: {}\r\n", name, value);
  return lines;
}

std::string ClosingAnswer(const ApiError& error) {
  const HttpResponse response = ErrorResponse(error);
  return fmt::format(
      "{}{} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}",
      kProtocol, response.status, Reason(response.status), response.content_type,
      response.body.size(), HeaderLines(response.headers), response.body);
}

bool IsOfConnection(error_code error) {
  static const auto& http_category = make_error_code(http::error::bad_value).category();
  return error && (error.category() != http_category || error == http::error::end_of_stream ||
                   error == http::error::partial_message);
}

HttpResponse BadRead(error_code error, const ServerOptions& options) {
  if (error == http::error::body_limit) {
    return ErrorResponse(
        {413, fmt::format("The body is larger than {} bytes.", options.max_body_bytes)});
  }
  if (error == http::error::header_limit) {
    return ErrorResponse(
        {431, fmt::format("The headers are larger than {} bytes.", options.max_header_bytes)});
  }
  return ErrorResponse({400, "This is not an HTTP request: " + error.message()});
}

std::optional<ApiError> BadHead(const http::request_header<>& head) {
  const auto is = [&](http::field field, std::string_view harmless) {
    const auto value = head[field];
    return value.empty() || boost::beast::iequals(value, {harmless.data(), harmless.size()});
  };
  const auto count = [&](http::field field) {
    const auto range = head.equal_range(field);
    return std::distance(range.first, range.second);
  };
  const auto hosts = count(http::field::host);
  if (hosts > 1 || (hosts == 0 && head.version() >= 11)) {
    return ApiError{400, "A request has one Host header (RFC 9112, 3.2)."};
  }
  // Only the first would be held against --allowed-origins.
  if (count(http::field::origin) > 1) {
    return ApiError{400, "A request has at most one Origin header (RFC 6454, 7.3)."};
  }
  // Where such a body ends is not known: a part of it could pass for the next request.
  if (!is(http::field::transfer_encoding, "chunked")) {
    return ApiError{400, "Transfer-Encoding may only be chunked."};
  }
  if (!is(http::field::content_encoding, "identity")) {
    return ApiError{415, "The body is compressed: send it without Content-Encoding."};
  }
  return std::nullopt;
}

}  // namespace fathom
