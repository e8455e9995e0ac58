#include "server/request_reader.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/read.hpp>
#include <utility>

#include "server/http_wire.h"

namespace fathom {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

Exchange::Exchange(const ServerOptions& options, MemoryBudget& budget) : claim(budget) {
  parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
  parser.body_limit(options.max_body_bytes);
  parser.get().body().claim = &claim;
}

void Exchange::TakeHead() {
  const auto& head = parser.get();
  const std::string_view target = View(head.target());
  request.method = View(head.method_string());
  request.path = target.substr(0, target.find('?'));
  request.content_type = View(head[http::field::content_type]);
  request.authorization = View(head[http::field::authorization]);
  request.origin = View(head[http::field::origin]);
  request.wanted_headers = View(head[http::field::access_control_request_headers]);
  request.id = RequestIdFrom(View(head["X-Request-Id"]));
  head_only = head.method() == http::verb::head;
  chunked = head.version() >= 11;
}

namespace {

// Of a read under a deadline. `part`: of the request, for the client.
ReadEnd EndOf(const ClientSocket& client, error_code error, const ServerOptions& options) {
  if (error == boost::system::errc::not_enough_memory) {
    return {.refusal = ErrorResponse(
                EngineError(Unavailable("Too many large requests at once: try again later.")))};
  }
  if (client.gone() || IsOfConnection(error)) return {.gone = true};
  if (error) return {.refusal = BadRead(error, options)};
  return {};
}

}  // namespace

asio::awaitable<ReadEnd> ReadHead(ClientSocket& client, const ServerOptions& options,
                                  Exchange& exchange) {
  error_code error;
  client.SetDeadline(options.header_timeout_ms);
  co_await http::async_read_header(client.socket(), client.buffer(), exchange.parser,
                                   asio::redirect_error(asio::use_awaitable, error));
  exchange.TakeHead();
  co_return EndOf(client, error, options);
}

asio::awaitable<ReadEnd> ReadBody(ClientSocket& client, const ServerOptions& options,
                                  Exchange& exchange) {
  if (View(exchange.parser.get()[http::field::expect]) == "100-continue") {
    client.Send("HTTP/1.1 100 Continue\r\n\r\n");
    co_await client.Flushed();
  }
  error_code error;
  client.SetDeadline(options.body_timeout_ms);
  co_await http::async_read(client.socket(), client.buffer(), exchange.parser,
                            asio::redirect_error(asio::use_awaitable, error));
  client.ClearDeadline();
  ReadEnd end = EndOf(client, error, options);
  if (!end.gone && !end.refusal) {
    exchange.unread = false;
    exchange.request.body = std::move(exchange.parser.get().body().text);
  }
  co_return end;
}

}  // namespace fathom
