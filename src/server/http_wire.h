// HTTP/1.1 as it crosses the socket: what is wrong with a request's bytes, and the lines that an
// answer begins with.
#pragma once

#include <boost/beast/http/message.hpp>
#include <boost/system/error_code.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http.h"
#include "server/options.h"

namespace fathom {

inline constexpr char kProtocol[] = "HTTP/1.1 ";

inline std::string_view View(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

// Whether the client or the connection ended, rather than said something wrong.
bool IsOfConnection(boost::system::error_code error);
// What answers a head or a body that could not be read.
HttpResponse BadRead(boost::system::error_code error, const ServerOptions& options);
// A host or a body that could be taken for more than one thing.
std::optional<ApiError> BadHead(const boost::beast::http::request_header<>& head);
// The client's request id if it can be printed and logged as it is; otherwise a new one.
std::string RequestIdFrom(std::string_view given);

const char* Reason(int status);
// All of an answer that a connection ends with, to whatever was asked, or nothing.
std::string ClosingAnswer(const ApiError& error);
std::string HeaderLines(const std::vector<std::pair<std::string, std::string>>& headers);

}  // namespace fathom
