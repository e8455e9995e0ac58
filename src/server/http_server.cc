#include "server/http_server.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <csignal>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "server/connection.h"
#include "server/http_wire.h"
#include "server/json_body.h"

namespace fathom {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr int kAbortGraceMs = 1'000;  // to send the last errors

constexpr int kRefusalMs = 1'000;       // to send one
constexpr int64_t kWarningMs = 10'000;  // between two warnings of the same thing

}  // namespace

class HttpServer::Loop {
 public:
  Loop(ServerOptions options, ServedEngine served)
      : options_(std::move(options)),
        api_(options_, served.engine, served.tokenizer, std::move(served.chat_template)),
        context_{options_, api_, served.engine, served.outputs, workers_},
        acceptor_(asio::make_strand(io_)),
        signals_(acceptor_.get_executor()),
        drain_timer_(acceptor_.get_executor()) {}

  ~Loop() {
    context_.stopping = true;
    workers_.Stop();
  }

  Status Listen(BoundPort port);
  void Run();
  void Stop() {
    asio::post(acceptor_.get_executor(), [this] { BeginDrain(); });
  }

 private:
  asio::awaitable<void> Accept();
  void AwaitSignal();
  // On the acceptor's strand.
  void BeginDrain();
  void AbortAll();
  void FinishIfDrained();
  void Admit(tcp::socket socket);
  bool EndLongestIdle(const std::string& address, bool reserved);
  void Refuse(tcp::socket socket, const ApiError& error);
  asio::awaitable<void> SendRefusal(tcp::socket socket, std::string text);
  void Open(tcp::socket socket, const std::string& address, bool reserved);
  void Closed(const std::shared_ptr<Connection>& connection);
  void WarnOfAccept(error_code error);

  const ServerOptions options_;
  Api api_;
  ConnectionContext context_;
  asio::io_context io_;  // with it go the connections that are still there
  Workers workers_;
  tcp::acceptor acceptor_;
  asio::signal_set signals_;
  asio::steady_timer drain_timer_;
  bool aborting_ = false;  // on the acceptor's strand
  // On the acceptor's strand, all of it.
  struct Place {
    std::string address;
    bool reserved = false;
    bool ending = false;  // it was idle, and gives way
  };
  std::unordered_map<std::shared_ptr<Connection>, Place> connections_;
  std::unordered_map<std::string, size_t> by_address_;  // those of connections_ that do not end
  size_t taken_ = 0, reserved_ = 0;                     // the same, of no reserve and of it
  size_t refusing_ = 0;
  int64_t warned_of_accept_ms_ = -kWarningMs;
};

Status HttpServer::Loop::Listen(BoundPort port) {
  error_code error;
  acceptor_.assign(port.ipv6() ? tcp::v6() : tcp::v4(), port.Release(), error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  // Another program may bind it too, until one of them listens.
  if (error) return Unavailable("cannot listen on port {}: {}", port.port(), error.message());
  return {};
}

void HttpServer::Loop::Run() {
  if (options_.handle_signals) {
    signals_.add(SIGTERM);
    signals_.add(SIGINT);
    AwaitSignal();
  }
  asio::co_spawn(acceptor_.get_executor(), Accept(), asio::detached);
  std::vector<std::jthread> threads;
  for (int i = 1; i < options_.io_threads; ++i) threads.emplace_back([this] { io_.run(); });
  io_.run();
}

void HttpServer::Loop::AwaitSignal() {
  signals_.async_wait([this](error_code error, int) {
    if (error) return;
    if (aborting_) {
      LOG_WARNING("stopping at once");
      io_.stop();
      return;
    }
    AwaitSignal();  // before the drain, which may be over at once and then ends this wait too
    context_.draining ? AbortAll() : BeginDrain();
  });
}

asio::awaitable<void> HttpServer::Loop::Accept() {
  while (!context_.draining) {
    error_code error;
    tcp::socket socket = co_await acceptor_.async_accept(
        asio::make_strand(io_), asio::redirect_error(asio::use_awaitable, error));
    if (context_.draining) co_return;
    if (error) {
      WarnOfAccept(error);
      asio::steady_timer pause(acceptor_.get_executor(), std::chrono::milliseconds(100));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
    } else {
      Admit(std::move(socket));
    }
  }
}

// Out of file descriptors, most likely: those in use have to go first.
void HttpServer::Loop::WarnOfAccept(error_code error) {
  const int64_t now_ms = SteadyClock().NowNs() / 1'000'000;
  if (now_ms - warned_of_accept_ms_ < kWarningMs) return;
  warned_of_accept_ms_ = now_ms;
  LOG_WARNING("no connection can be accepted for now: {}", error.message());
}

// Whoever is idle the longest gives way to whoever comes; where nobody is, routes that say how the
// server is have a reserve.
void HttpServer::Loop::Admit(tcp::socket socket) {
  error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return;  // gone already
  const std::string address = endpoint.address().to_string();
  const auto of_client = by_address_.find(address);
  if (of_client != by_address_.end() && of_client->second >= options_.max_connections_per_client &&
      !EndLongestIdle(address, /*reserved=*/false)) {
    Refuse(
        std::move(socket),
        EngineError(ResourceExhausted("Too many connections from one address: try again later.")));
  } else if (taken_ < options_.max_connections || EndLongestIdle("", /*reserved=*/false)) {
    Open(std::move(socket), address, /*reserved=*/false);
  } else if (reserved_ < options_.reserved_connections || EndLongestIdle("", /*reserved=*/true)) {
    Open(std::move(socket), address, /*reserved=*/true);
  } else {
    Refuse(std::move(socket), EngineError(Unavailable("Too many connections: try again later.")));
  }
}

// Of those of `address`, or of all if it is empty. False if none is idle.
bool HttpServer::Loop::EndLongestIdle(const std::string& address, bool reserved) {
  auto longest = connections_.end();
  int64_t since_ms = Connection::kBusy;
  for (auto it = connections_.begin(); it != connections_.end(); ++it) {
    const Place& place = it->second;
    const bool meant = !place.ending && place.reserved == reserved &&
                       (address.empty() || place.address == address);
    if (!meant || it->first->idle_since_ms() >= since_ms) continue;
    longest = it;
    since_ms = it->first->idle_since_ms();
  }
  if (longest == connections_.end()) return false;
  longest->first->EndIfIdle();
  longest->second.ending = true;
  --(reserved ? reserved_ : taken_);
  if (--by_address_[longest->second.address] == 0) by_address_.erase(longest->second.address);
  return true;
}

// Says so, to as many at a time as a full server has the room for.
void HttpServer::Loop::Refuse(tcp::socket socket, const ApiError& error) {
  if (refusing_ >= options_.reserved_connections) return;
  const HttpResponse response = ErrorResponse(error);
  std::string text = fmt::format(
      "{}{} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}",
      kProtocol, response.status, Reason(response.status), response.content_type,
      response.body.size(), HeaderLines(response.headers), response.body);
  ++refusing_;
  const auto executor = socket.get_executor();
  asio::co_spawn(executor, SendRefusal(std::move(socket), std::move(text)),
                 [this](const std::exception_ptr&) {
                   asio::post(acceptor_.get_executor(), [this] { --refusing_; });
                 });
}

asio::awaitable<void> HttpServer::Loop::SendRefusal(tcp::socket socket, std::string text) {
  const auto client = std::make_shared<ClientSocket>(std::move(socket), 0, kRefusalMs);
  client->Send(std::move(text));
  co_await client->Flushed();
  if (!client->gone()) co_await client->Linger(kRefusalMs);
}

void HttpServer::Loop::Open(tcp::socket socket, const std::string& address, bool reserved) {
  auto connection = std::make_shared<Connection>(std::move(socket), context_, reserved);
  connections_[connection] = {.address = address, .reserved = reserved};
  ++(reserved ? reserved_ : taken_);
  ++by_address_[address];
  connection->Start([this, connection] {
    asio::post(acceptor_.get_executor(), [this, connection] { Closed(connection); });
  });
}

void HttpServer::Loop::Closed(const std::shared_ptr<Connection>& connection) {
  const auto found = connections_.find(connection);
  const Place& place = found->second;
  if (!place.ending) {
    --(place.reserved ? reserved_ : taken_);
    if (--by_address_[place.address] == 0) by_address_.erase(place.address);
  }
  connections_.erase(found);
  FinishIfDrained();
}

void HttpServer::Loop::BeginDrain() {
  if (context_.draining.exchange(true)) return;
  LOG_INFO("stopping: {} connections may finish within {} s{}", connections_.size(),
           options_.shutdown_timeout_ms / 1000,
           options_.handle_signals ? "; a second Ctrl-C ends them at once" : "");
  error_code ignored;
  acceptor_.close(ignored);
  for (const auto& [connection, place] : connections_) connection->EndIfIdle();
  drain_timer_.expires_after(std::chrono::milliseconds(options_.shutdown_timeout_ms));
  drain_timer_.async_wait([this](error_code error) {
    if (!error) AbortAll();
  });
  FinishIfDrained();
}

void HttpServer::Loop::AbortAll() {
  if (std::exchange(aborting_, true)) return;
  LOG_WARNING("ending {} connections that are still at work", connections_.size());
  for (const auto& [connection, place] : connections_) connection->Abort();
  drain_timer_.expires_after(std::chrono::milliseconds(kAbortGraceMs));
  drain_timer_.async_wait([this](error_code error) {
    if (!error) io_.stop();
  });
}

void HttpServer::Loop::FinishIfDrained() {
  if (!context_.draining || !connections_.empty()) return;
  drain_timer_.cancel();
  signals_.cancel();
}

HttpServer::HttpServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::Listen(ServerOptions options, BoundPort port,
                                                       ServedEngine served) {
  CHECK(!options.served_model_names.empty() && options.vocab_size > 0 && options.io_threads > 0,
        "server options are not filled in");
  const size_t least = MaxRequestMemory(options.max_body_bytes) / 3 * 4 + 3;
  if (options.max_request_memory_bytes < least) {
    return InvalidArgument(
        "--max-request-memory-bytes {} is too little for bodies of {} (--max-body-bytes): one may "
        "take {}, three quarters of at least {}",
        options.max_request_memory_bytes, options.max_body_bytes,
        MaxRequestMemory(options.max_body_bytes), least);
  }
  options.loopback = port.loopback();
  auto loop = std::make_unique<Loop>(std::move(options), std::move(served));
  TRY(loop->Listen(std::move(port)));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(loop)));
}

void HttpServer::Run() {
  loop_->Run();
}

void HttpServer::Stop() {
  loop_->Stop();
}

}  // namespace fathom
