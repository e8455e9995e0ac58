#include "server/connection.h"

#include <netinet/tcp.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <utility>

#include "base/log.h"

namespace fathom {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kReadAheadBytes = size_t{64} << 10;  // of pipelined requests
constexpr size_t kWriteSliceBytes = size_t{64} << 10;
constexpr size_t kInlineBodyBytes = size_t{64} << 10;  // longer ones are handled by a worker
constexpr int kKernelUnsentBytes = 16 << 10;
constexpr int kLingerMs = 2'000;

std::string_view View(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

const char* Reason(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 413: return "Payload Too Large";
    case 415: return "Unsupported Media Type";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Internal Server Error";
  }
}

// The client's request id if it can be printed and logged as it is; otherwise a new one.
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

// At most 96 bytes of a target, safe to log.
std::string Printable(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 96)) result += c > ' ' && c < 127 ? c : '?';
  return result;
}

// Whether the client or the connection ended, rather than said something wrong.
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

// Room for a body among those that are being read or handled; given back at the end.
class BodyBudget {
 public:
  explicit BodyBudget(std::atomic<size_t>& used) : used_(used) {}
  ~BodyBudget() { used_ -= taken_; }
  BodyBudget(const BodyBudget&) = delete;
  bool Take(size_t bytes, size_t limit) {
    taken_ = bytes;
    return used_.fetch_add(bytes) + bytes <= limit;
  }

 private:
  std::atomic<size_t>& used_;
  size_t taken_ = 0;
};

}  // namespace

struct Connection::Exchange {
  explicit Exchange(const ServerOptions& options) {
    parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
    parser.body_limit(options.max_body_bytes);
    max_body_bytes = options.max_body_bytes;
  }

  void TakeHead() {
    const auto& head = parser.get();
    const std::string_view target = View(head.target());
    request.method = View(head.method_string());
    request.path = target.substr(0, target.find('?'));
    request.content_type = View(head[http::field::content_type]);
    request.authorization = View(head[http::field::authorization]);
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
  size_t max_body_bytes = 0;
  bool head_only = false;
  bool keep_alive = false;
  bool chunked = true;  // HTTP/1.0 knows no chunks: the end of the connection ends the body
  bool unread = true;   // the client may still be sending
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  Usage usage;
};

Connection::Connection(Socket socket, ConnectionContext& context)
    : socket_(std::move(socket)),
      context_(context),
      buffer_(kReadAheadBytes + context.options.max_header_bytes),
      deadline_(socket_.get_executor()),
      changed_timer_(socket_.get_executor()) {
  error_code error;
  const auto endpoint = socket_.remote_endpoint(error);
  peer_ = error ? "?" : fmt::format("{}:{}", endpoint.address().to_string(), endpoint.port());
  socket_.set_option(asio::ip::tcp::no_delay(true), error);
  // What a client does not read stays here, where it is counted, and not in the kernel.
  const int unsent = kKernelUnsentBytes;
  if (setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent) !=
      0) {
    LOG_DEBUG("{} TCP_NOTSENT_LOWAT: {}", peer_, std::strerror(errno));
  }
}

void Connection::Start(std::function<void()> done) {
  asio::co_spawn(
      socket_.get_executor(), [self = shared_from_this()] { return self->Serve(); },
      [self = shared_from_this(), done = std::move(done)](std::exception_ptr failure) {
        if (failure) LOG_ERROR("{} the connection ended by an exception", self->peer_);
        self->Drop();
        done();
      });
}

void Connection::Drain() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    error_code ignored;
    if (self->idle_) self->socket_.cancel(ignored);
  });
}

void Connection::Abort() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->aborting_ = true;
    self->Notify();
  });
}

asio::awaitable<void> Connection::Serve() {
  bool more = true;
  while (more) more = co_await ServeOne();
  ClearDeadline();
  error_code ignored;
  socket_.shutdown(Socket::shutdown_both, ignored);
  socket_.close(ignored);
}

asio::awaitable<bool> Connection::WaitForRequest() {
  if (buffer_.size() > 0) co_return true;
  if (context_.draining) co_return false;
  idle_ = true;
  SetDeadline(fresh_ ? context_.options.header_timeout_ms : context_.options.idle_timeout_ms);
  error_code error;
  co_await socket_.async_wait(Socket::wait_read, asio::redirect_error(asio::use_awaitable, error));
  idle_ = fresh_ = false;
  co_return !error && !gone_;
}

asio::awaitable<bool> Connection::ServeOne() {
  if (!co_await WaitForRequest()) co_return false;
  const ServerOptions& options = context_.options;
  Exchange exchange(options);
  error_code error;
  SetDeadline(options.header_timeout_ms);
  co_await http::async_read_header(socket_, buffer_, exchange.parser,
                                   asio::redirect_error(asio::use_awaitable, error));
  if (gone_ || IsOfConnection(error)) co_return false;
  exchange.TakeHead();
  // Locals, not temporaries, on both sides of a co_await: GCC 12 destroys some of those twice.
  std::optional<HttpResponse> refusal = error ? BadRead(error, options) : CheckHead(exchange);
  BodyBudget budget(context_.inflight_body_bytes);
  if (!refusal && !budget.Take(exchange.BodyBytes(), options.max_inflight_body_bytes)) {
    refusal = ErrorResponse(EngineError(Unavailable("Too many large requests at once.")));
  }
  if (!refusal) {
    co_await ReadBody(exchange, error);
    if (gone_ || IsOfConnection(error)) co_return false;
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
  exchange.unread = !exchange.parser.is_done();
  return context_.api.CheckHead(exchange.request);
}

asio::awaitable<void> Connection::ReadBody(Exchange& exchange, error_code& error) {
  if (View(exchange.parser.get()[http::field::expect]) == "100-continue") {
    Send("HTTP/1.1 100 Continue\r\n\r\n");
    co_await Flushed();
  }
  SetDeadline(context_.options.body_timeout_ms);
  co_await http::async_read(socket_, buffer_, exchange.parser,
                            asio::redirect_error(asio::use_awaitable, error));
  ClearDeadline();
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
  if (const auto* response = std::get_if<HttpResponse>(&answer)) {
    co_return co_await Respond(exchange, *response);
  }
  Generation& generation = *std::get<std::unique_ptr<Generation>>(answer);
  co_return co_await Generate(exchange, generation);
}

asio::awaitable<bool> Connection::Generate(Exchange& exchange, Generation& generation) {
  std::optional<RequestStream> stream;
  stream.emplace(context_.outputs, context_.engine, [self = shared_from_this()] {
    asio::post(self->socket_.get_executor(), [self] { self->Notify(); });
  });
  const Status status = stream->Submit(generation.Requests());
  if (!status.ok()) {
    const ApiError error = EngineError(status);
    co_return co_await Refuse(exchange, error);
  }
  StartWatch();
  if (generation.streams()) {
    Send(
        fmt::format("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                    "Cache-Control: no-cache\r\nX-Request-Id: {}\r\n{}{}\r\n",
                    exchange.request.id, exchange.chunked ? "Transfer-Encoding: chunked\r\n" : "",
                    exchange.keep_alive && exchange.chunked ? "" : "Connection: close\r\n"));
  }
  bool intact = co_await Pump(exchange, generation, *stream);
  stream.reset();  // what has not ended is cancelled now, before the answer's last bytes are out
  exchange.usage = generation.usage();
  if (intact && generation.streams()) co_await Flushed();
  co_await StopWatch();
  intact = intact && !gone_;
  if (!intact) {
    generation.Fail(EngineError(Cancelled("The client went away.")), "abort");
    Log(exchange, 499);  // nginx's number for a client that went away
    Drop();
    co_return false;
  }
  if (!generation.streams()) {
    if (generation.error()) co_return co_await Refuse(exchange, *generation.error());
    const HttpResponse response{.body = generation.Body()};
    co_return co_await Respond(exchange, response);
  }
  const bool failed = generation.error().has_value();
  Log(exchange, failed ? generation.error()->status : 200);
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
    co_await Changed();
    if (gone_) co_return false;
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
    if (unsent() > context_.options.max_unsent_bytes) {
      LOG_WARNING("{} does not read: dropped with {} bytes unsent", peer_, unsent());
      co_return false;
    }
    const bool large = events.size() > context_.options.max_unsent_bytes;
    Send(frame(events));
    // One large step is no sign of a client that does not read.
    if (large) co_await Flushed();
  }
  if (generation.streams() && exchange.chunked) Send("0\r\n\r\n");
  co_return !gone_;
}

asio::awaitable<bool> Connection::Respond(Exchange& exchange, const HttpResponse& response) {
  const bool keep_alive = exchange.keep_alive && !exchange.unread && !context_.draining;
  std::string bytes = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nX-Request-Id: {}\r\n"
      "Connection: {}\r\n",
      response.status, Reason(response.status), response.content_type, response.body.size(),
      exchange.request.id, keep_alive ? "keep-alive" : "close");
  for (const auto& [name, value] : response.headers) bytes += name + ": " + value + "\r\n";
  bytes += "\r\n";
  if (!exchange.head_only) bytes += response.body;
  Send(std::move(bytes));
  Log(exchange, response.status);
  co_await Flushed();
  if (!keep_alive && exchange.unread && !gone_) co_await Linger();
  co_return keep_alive && !gone_;
}

// Reads on for a while after the answer to a request that was not read to its end: closing at once
// would make the client's kernel throw the answer away.
asio::awaitable<void> Connection::Linger() {
  error_code error;
  socket_.shutdown(Socket::shutdown_send, error);
  SetDeadline(kLingerMs);
  std::string discarded(16384, '\0');
  while (!error && !gone_) {
    co_await socket_.async_read_some(asio::buffer(discarded),
                                     asio::redirect_error(asio::use_awaitable, error));
  }
  ClearDeadline();
}

void Connection::Log(const Exchange& exchange, int status) const {
  const HttpRequest& request = exchange.request;
  const std::string_view route = Api::RouteName(request.path);
  const bool known = request.method == "GET" || request.method == "POST";
  context_.api.metrics().OnHttp(known ? request.method : "other", route, status);
  const std::chrono::duration<double, std::milli> took =
      std::chrono::steady_clock::now() - exchange.began;
  const std::string line =
      fmt::format("{} {} {} {} {:.1f} ms, {} prompt + {} generated tokens, id {}", peer_,
                  Printable(request.method), Printable(request.path), status, took.count(),
                  exchange.usage.prompt_tokens, exchange.usage.completion_tokens, request.id);
  if (route == "/health" || route == "/ping" || route == "/metrics") {
    LOG_DEBUG("{}", line);
  } else {
    LOG_INFO("{}", line);
  }
}

asio::awaitable<void> Connection::Changed() {
  while (!changed_) {
    changed_timer_.expires_at(std::chrono::steady_clock::time_point::max());
    error_code cancelled;
    co_await changed_timer_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
  }
  changed_ = false;
}

void Connection::Notify() {
  changed_ = true;
  changed_timer_.cancel();
}

asio::awaitable<void> Connection::Flushed() {
  while (writing_ && !gone_) co_await Changed();
  changed_ = true;  // others may have waited for what was passed over here
}

size_t Connection::unsent() const {
  return outbox_.size() + sending_.size() - sent_;
}

void Connection::Send(std::string bytes) {
  if (gone_) return;
  if (outbox_.empty()) {
    outbox_ = std::move(bytes);
  } else {
    outbox_ += bytes;
  }
  if (!writing_) StartWrite();
}

void Connection::StartWrite() {
  if (sent_ == sending_.size()) {
    sending_ = std::exchange(outbox_, {});
    sent_ = 0;
  }
  writing_ = true;
  SetDeadline(context_.options.send_timeout_ms);
  const size_t slice = std::min(sending_.size() - sent_, kWriteSliceBytes);
  asio::async_write(socket_, asio::buffer(sending_.data() + sent_, slice),
                    [self = shared_from_this()](error_code error, size_t written) {
                      self->writing_ = false;
                      self->sent_ += written;
                      self->ClearDeadline();
                      if (error) self->gone_ = true;
                      if (!self->gone_ && self->unsent() > 0) self->StartWrite();
                      self->Notify();
                    });
}

void Connection::StartWatch() {
  const size_t room = kReadAheadBytes - std::min(buffer_.size(), kReadAheadBytes);
  watch_wanted_ = true;
  if (watching_ || gone_ || room == 0) return;
  watching_ = true;
  socket_.async_read_some(buffer_.prepare(std::min<size_t>(room, 4096)),
                          [self = shared_from_this()](error_code error, size_t read) {
                            self->watching_ = false;
                            self->buffer_.commit(read);
                            if (!error) {
                              if (self->watch_wanted_) self->StartWatch();
                            } else if (error != asio::error::operation_aborted) {
                              self->gone_ = true;
                            }
                            self->Notify();
                          });
}

asio::awaitable<void> Connection::StopWatch() {
  error_code ignored;
  watch_wanted_ = false;
  socket_.cancel(ignored);
  while (watching_) co_await Changed();
}

void Connection::SetDeadline(int ms) {
  deadline_.expires_after(std::chrono::milliseconds(ms));
  deadline_.async_wait([self = weak_from_this()](error_code error) {
    const auto connection = self.lock();
    if (error || !connection) return;
    if (connection->deadline_.expiry() <= std::chrono::steady_clock::now()) connection->Drop();
  });
}

void Connection::ClearDeadline() {
  deadline_.expires_at(std::chrono::steady_clock::time_point::max());
}

void Connection::Drop() {
  error_code ignored;
  if (socket_.is_open()) {
    // A reset: what the kernel still holds for the client goes too.
    socket_.set_option(asio::socket_base::linger(true, 0), ignored);
    socket_.close(ignored);
  }
  ClearDeadline();
  gone_ = true;
  Notify();
}

}  // namespace fathom
