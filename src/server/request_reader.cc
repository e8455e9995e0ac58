#include "server/request_reader.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/read.hpp>
#include <string_view>
#include <utility>

#include "server/http_wire.h"

namespace fathom {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kHeadReadBytes = 4096;

// Of a read under a deadline.
ReadEnd EndOf(const ClientSocket& client, error_code error, const ServerOptions& options,
              const MemoryClaim& claim) {
  if (error == boost::system::errc::not_enough_memory) {
    return {.refusal = ErrorResponse(EngineError(claim.failure()))};
  }
  if (client.gone()) return {.gone = true};
  if (error && client.timed_out()) {
    return {.refusal = ErrorResponse({408, "The request took too long to arrive."})};
  }
  if (IsOfConnection(error)) return {.gone = true};
  if (error) return {.refusal = BadRead(error, options)};
  return {};
}

// Before a request line (RFC 9112, 2.2).
asio::awaitable<void> SkipEmptyLines(ClientSocket& client, error_code& error) {
  constexpr int kMostLines = 8;
  for (int skipped = 0; skipped < kMostLines;) {
    const auto read = client.buffer().data();
    const std::string_view text(static_cast<const char*>(read.data()), read.size());
    if (text.starts_with("\r\n")) {
      client.buffer().consume(2);
      ++skipped;
    } else if (!text.empty() && text != "\r") {
      co_return;
    } else {
      const auto room = client.buffer().prepare(kHeadReadBytes);
      const size_t bytes = co_await client.stream().async_read_some(
          room, asio::redirect_error(asio::use_awaitable, error));
      if (error) co_return;
      client.buffer().commit(bytes);
    }
  }
}

}  // namespace

asio::awaitable<ReadEnd> ReadHead(ClientSocket& client, const ServerOptions& options,
                                  Exchange& exchange) {
  error_code error;
  client.SetReadDeadline(options.header_timeout_ms);
  co_await SkipEmptyLines(client, error);
  if (!error) {
    co_await http::async_read_header(client.stream(), client.buffer(), exchange.parser,
                                     asio::redirect_error(asio::use_awaitable, error));
  }
  exchange.TakeHead();
  co_return EndOf(client, error, options, exchange.claim);
}

asio::awaitable<ReadEnd> ReadBody(ClientSocket& client, const ServerOptions& options,
                                  Exchange& exchange) {
  if (boost::beast::iequals(exchange.parser.get()[http::field::expect], "100-continue")) {
    client.Send("HTTP/1.1 100 Continue\r\n\r\n");
    co_await client.Flushed();
  }
  error_code error;
  client.SetReadDeadline(options.body_timeout_ms);
  co_await http::async_read(client.stream(), client.buffer(), exchange.parser,
                            asio::redirect_error(asio::use_awaitable, error));
  client.ClearDeadline();
  ReadEnd end = EndOf(client, error, options, exchange.claim);
  if (!end.gone && !end.refusal) {
    exchange.unread = false;
    exchange.request.body = std::move(exchange.parser.get().body().text);
  }
  co_return end;
}

}  // namespace fathom
