#include "server/connection.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/printable.h"
#include "server/http_wire.h"

namespace fathom {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kReadAheadBytes = size_t{64} << 10;   // of pipelined requests
constexpr size_t kInlineBodyBytes = size_t{64} << 10;  // longer ones are handled by a worker
constexpr size_t kLoggedBytes = 96;                    // of a method or a path
constexpr int kLingerMs = 2'000;

// Room for a body among those that are being read or handled; given back at the end.
class BodyBudget {
 public:
  explicit BodyBudget(std::atomic<size_t>& used) : used_(used) {}
  ~BodyBudget() { Release(); }
  BodyBudget(const BodyBudget&) = delete;
  bool Take(size_t bytes, size_t limit) {
    taken_ = bytes;
    return used_.fetch_add(bytes) + bytes <= limit;
  }
  void Release() { used_ -= std::exchange(taken_, 0); }

 private:
  std::atomic<size_t>& used_;
  size_t taken_ = 0;
};

}  // namespace

struct Connection::Exchange {
  explicit Exchange(ConnectionContext& context)
      : max_body_bytes(context.options.max_body_bytes), budget(context.inflight_body_bytes) {
    parser.header_limit(static_cast<uint32_t>(context.options.max_header_bytes));
    parser.body_limit(max_body_bytes);
  }

  void TakeHead() {
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
  // As far as the head says: the limit if it does not.
  size_t BodyBytes() const {
    if (const auto length = parser.content_length()) return *length;
    return parser.is_done() ? 0 : max_body_bytes;
  }

  http::request_parser<http::string_body> parser;
  HttpRequest request;
  const size_t max_body_bytes;
  BodyBudget budget;
  bool head_only = false;
  bool keep_alive = false;
  bool chunked = true;  // HTTP/1.0 knows no chunks: the end of the connection ends the body
  bool unread = true;   // the client may still be sending
  bool probed = false;  // after a half-close: an answer that is no stream has begun with kProtocol
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  Usage usage;
};

Connection::Connection(ClientSocket::Socket socket, ConnectionContext& context)
    : context_(context),
      client_(std::make_shared<ClientSocket>(std::move(socket),
                                             kReadAheadBytes + context.options.max_header_bytes,
                                             context.options.send_timeout_ms)) {}

void Connection::Start(std::function<void()> done) {
  asio::co_spawn(
      client_->socket().get_executor(), [self = shared_from_this()] { return self->Serve(); },
      [self = shared_from_this(), done = std::move(done)](const std::exception_ptr& failure) {
        if (failure) LOG_ERROR("{} the connection ended by an exception", self->client_->peer());
        self->client_->Drop();
        done();
      });
}

void Connection::Drain() {
  asio::post(client_->socket().get_executor(), [self = shared_from_this()] {
    error_code ignored;
    if (self->idle_) self->client_->socket().cancel(ignored);
  });
}

void Connection::Abort() {
  asio::post(client_->socket().get_executor(), [self = shared_from_this()] {
    self->aborting_ = true;
    self->client_->Notify();
  });
}

asio::awaitable<void> Connection::Serve() {
  bool more = true;
  while (more) more = co_await ServeOne();
  client_->Close();
}

asio::awaitable<bool> Connection::WaitForRequest() {
  if (client_->buffer().size() > 0) co_return true;
  if (context_.draining) co_return false;
  idle_ = true;
  client_->SetDeadline(fresh_ ? context_.options.header_timeout_ms
                              : context_.options.idle_timeout_ms);
  error_code error;
  co_await client_->socket().async_wait(ClientSocket::Socket::wait_read,
                                        asio::redirect_error(asio::use_awaitable, error));
  idle_ = fresh_ = false;
  co_return !error && !client_->gone();
}

asio::awaitable<bool> Connection::ServeOne() {
  if (!co_await WaitForRequest()) co_return false;
  const ServerOptions& options = context_.options;
  Exchange exchange(context_);
  error_code error;
  client_->SetDeadline(options.header_timeout_ms);
  co_await http::async_read_header(client_->socket(), client_->buffer(), exchange.parser,
                                   asio::redirect_error(asio::use_awaitable, error));
  if (client_->gone() || IsOfConnection(error)) co_return false;
  exchange.TakeHead();
  // Locals, not temporaries, on both sides of a co_await: GCC 12 destroys some of those twice.
  std::optional<HttpResponse> refusal = error ? BadRead(error, options) : CheckHead(exchange);
  if (!refusal && !exchange.budget.Take(exchange.BodyBytes(), options.max_inflight_body_bytes)) {
    refusal = ErrorResponse(EngineError(Unavailable("Too many large requests at once.")));
  }
  if (!refusal) {
    co_await ReadBody(exchange, error);
    if (client_->gone() || IsOfConnection(error)) co_return false;
    if (error) refusal = BadRead(error, options);
  }
  if (refusal) co_return co_await Respond(exchange, *refusal);
  exchange.unread = false;
  exchange.request.body = std::move(exchange.parser.get().body());
  co_return co_await Handle(exchange);
}

std::optional<HttpResponse> Connection::CheckHead(Exchange& exchange) const {
  if (context_.draining) {
    return ErrorResponse(EngineError(Unavailable("The server is shutting down.")));
  }
  exchange.keep_alive = exchange.parser.keep_alive();
  const std::optional<ApiError> bad_encoding = BadEncoding(exchange.parser.get());
  exchange.unread = bad_encoding || !exchange.parser.is_done();
  if (bad_encoding) return ErrorResponse(*bad_encoding);
  return context_.api.CheckHead(exchange.request);
}

asio::awaitable<void> Connection::ReadBody(Exchange& exchange, error_code& error) {
  if (View(exchange.parser.get()[http::field::expect]) == "100-continue") {
    client_->Send("HTTP/1.1 100 Continue\r\n\r\n");
    co_await client_->Flushed();
  }
  client_->SetDeadline(context_.options.body_timeout_ms);
  co_await http::async_read(client_->socket(), client_->buffer(), exchange.parser,
                            asio::redirect_error(asio::use_awaitable, error));
  client_->ClearDeadline();
}

asio::awaitable<bool> Connection::Refuse(Exchange& exchange, const ApiError& error) {
  const HttpResponse response = ErrorResponse(error);
  co_return co_await Respond(exchange, response);
}

asio::awaitable<bool> Connection::Handle(Exchange& exchange) {
  Api::Answer answer;
  if (exchange.request.body.size() <= kInlineBodyBytes) {
    answer = context_.api.Handle(exchange.request);
  } else {
    co_await asio::co_spawn(
        context_.workers,
        [&]() -> awaitable<void> {
          answer = context_.api.Handle(exchange.request);
          co_return;
        },
        asio::use_awaitable);
  }
  exchange.request.body = {};
  exchange.budget.Release();
  if (const auto* response = std::get_if<HttpResponse>(&answer)) {
    co_return co_await Respond(exchange, *response);
  }
  Generation& generation = *std::get<std::unique_ptr<Generation>>(answer);
  co_return co_await Generate(exchange, generation);
}

asio::awaitable<bool> Connection::Generate(Exchange& exchange, Generation& generation) {
  std::optional<RequestStream> stream;
  stream.emplace(context_.outputs, context_.engine, [client = client_] {
    asio::post(client->socket().get_executor(), [client] { client->Notify(); });
  });
  const Status status = stream->Submit(generation.Requests());
  if (!status.ok()) {
    const ApiError error = EngineError(status);
    co_return co_await Refuse(exchange, error);
  }
  client_->StartWatch();
  if (generation.streams()) {
    client_->Send(
        fmt::format("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                    "Cache-Control: no-cache\r\nX-Request-Id: {}\r\n{}{}{}\r\n",
                    exchange.request.id, exchange.chunked ? "Transfer-Encoding: chunked\r\n" : "",
                    exchange.keep_alive && exchange.chunked ? "" : "Connection: close\r\n",
                    HeaderLines(context_.api.cors().Headers(exchange.request.origin))));
  }
  bool intact = co_await Pump(exchange, generation, *stream);
  stream.reset();  // what has not ended is cancelled now, before the answer's last bytes are out
  exchange.usage = generation.usage();
  if (intact && generation.streams()) co_await client_->Flushed();
  co_await client_->StopWatch();
  intact = intact && !client_->gone();
  if (!intact) {
    generation.Fail(EngineError(Cancelled("The client went away.")), "abort");
    Log(exchange, 499);  // nginx's number for a client that went away
    client_->Drop();
    co_return false;
  }
  if (!generation.streams()) {
    if (generation.error()) co_return co_await Refuse(exchange, *generation.error());
    const HttpResponse response{.body = generation.Body()};
    co_return co_await Respond(exchange, response);
  }
  const bool failed = generation.error().has_value();
  Log(exchange, 200, failed ? generation.error()->message : "");
  co_return !failed && exchange.keep_alive && exchange.chunked;
}

// Moves tokens from the engine to the client until the generation is done. False if the client is
// gone or does not read.
asio::awaitable<bool> Connection::Pump(Exchange& exchange, Generation& generation,
                                       RequestStream& stream) {
  const auto frame = [&](const std::string& events) {
    return exchange.chunked ? fmt::format("{:x}\r\n{}\r\n", events.size(), events) : events;
  };
  while (!generation.done()) {
    if (client_->half_closed() && !std::exchange(exchange.probed, true)) {
      // What says nothing yet, to learn whether the client is still there: a comment, or the first
      // bytes of any answer.
      client_->Send(generation.streams() ? frame(":\n\n") : kProtocol);
    }
    co_await client_->Changed();
    if (client_->gone()) co_return false;
    std::string events;
    for (auto& [index, output] : stream.Take()) {
      generation.OnOutput(index, std::move(output), &events);
      for (const size_t cancelled : generation.TakeCancels()) stream.Cancel(cancelled);
    }
    if (aborting_ && !generation.done()) {
      generation.Fail(EngineError(Unavailable("The server is shutting down.")), "abort");
    }
    if (generation.streams() && generation.done()) {
      events += generation.error() ? ErrorEvent(*generation.error()) : generation.LastEvents();
    }
    if (events.empty()) continue;
    if (client_->unsent() > context_.options.max_unsent_bytes) {
      LOG_WARNING("{} does not read: dropped with {} bytes unsent", client_->peer(),
                  client_->unsent());
      co_return false;
    }
    const bool large = events.size() > context_.options.max_unsent_bytes;
    client_->Send(frame(events));
    // One large step is no sign of a client that does not read.
    if (large) co_await client_->Flushed();
  }
  if (generation.streams() && exchange.chunked) client_->Send("0\r\n\r\n");
  co_return !client_->gone();
}

asio::awaitable<bool> Connection::Respond(Exchange& exchange, const HttpResponse& response) {
  const bool keep_alive = exchange.keep_alive && !exchange.unread && !context_.draining;
  std::string bytes = fmt::format(
      "{}{} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nX-Request-Id: {}\r\n"
      "Connection: {}\r\n",
      exchange.probed ? "" : kProtocol, response.status, Reason(response.status),
      response.content_type, response.body.size(), exchange.request.id,
      keep_alive ? "keep-alive" : "close");
  bytes += HeaderLines(response.headers);
  bytes += HeaderLines(context_.api.cors().Headers(exchange.request.origin));
  bytes += "\r\n";
  if (!exchange.head_only) bytes += response.body;
  client_->Send(std::move(bytes));
  Log(exchange, response.status);
  co_await client_->Flushed();
  if (!keep_alive && exchange.unread && !client_->gone()) co_await client_->Linger(kLingerMs);
  co_return keep_alive && !client_->gone();
}

void Connection::Log(const Exchange& exchange, int status, std::string_view error) const {
  const HttpRequest& request = exchange.request;
  const std::string_view route = Api::RouteName(request.path);
  const bool known = request.method == "GET" || request.method == "POST";
  context_.api.metrics().OnHttp(known ? request.method : "other", route, status);
  const std::chrono::duration<double, std::milli> took =
      std::chrono::steady_clock::now() - exchange.began;
  std::string line = fmt::format(
      "{} {} {} {} {:.1f} ms, {} prompt + {} generated tokens, id {}", client_->peer(),
      Printable(request.method, kLoggedBytes), Printable(request.path, kLoggedBytes), status,
      took.count(), exchange.usage.prompt_tokens, exchange.usage.completion_tokens, request.id);
  if (!error.empty()) line += fmt::format(", ended by an error: {}", error);
  if (route == "/health" || route == "/ping" || route == "/metrics") {
    LOG_DEBUG("{}", line);
  } else {
    LOG_INFO("{}", line);
  }
}

}  // namespace fathom
