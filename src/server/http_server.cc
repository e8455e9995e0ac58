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
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/log.h"
#include "server/connection.h"
#include "server/json_body.h"

namespace fathom {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr int kAbortGraceMs = 1'000;  // to send the last errors

constexpr std::string_view kTooManyConnections =
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: application/json\r\n"
    "Content-Length: 128\r\nConnection: close\r\n\r\n"
    R"({"error":{"message":"Too many connections: try again.","type":"service_unavailable_error",)"
    R"("param":null,"code":"unavailable"}}    )"
    "\n\n\n\n";

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
  void Refuse(tcp::socket socket);
  void Open(tcp::socket socket);
  void Closed(const std::shared_ptr<Connection>& connection);

  const ServerOptions options_;
  Api api_;
  ConnectionContext context_;
  asio::io_context io_;  // with it go the connections that are still there
  Workers workers_;
  tcp::acceptor acceptor_;
  asio::signal_set signals_;
  asio::steady_timer drain_timer_;
  bool aborting_ = false;                                        // on the acceptor's strand
  std::unordered_set<std::shared_ptr<Connection>> connections_;  // on the acceptor's strand
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
      // Out of file descriptors, most likely: those in use have to go first.
      LOG_WARNING("accept: {}", error.message());
      asio::steady_timer pause(acceptor_.get_executor(), std::chrono::milliseconds(100));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
    } else if (connections_.size() >= options_.max_connections) {
      Refuse(std::move(socket));
    } else {
      Open(std::move(socket));
    }
  }
}

// Says so without waiting for the client to take it.
void HttpServer::Loop::Refuse(tcp::socket socket) {
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(kTooManyConnections), ignored);
  socket.shutdown(tcp::socket::shutdown_both, ignored);
}

void HttpServer::Loop::Open(tcp::socket socket) {
  auto connection = std::make_shared<Connection>(std::move(socket), context_);
  connections_.insert(connection);
  connection->Start([this, connection] {
    asio::post(acceptor_.get_executor(), [this, connection] { Closed(connection); });
  });
}

void HttpServer::Loop::Closed(const std::shared_ptr<Connection>& connection) {
  connections_.erase(connection);
  FinishIfDrained();
}

void HttpServer::Loop::BeginDrain() {
  if (context_.draining.exchange(true)) return;
  LOG_INFO("stopping: {} connections may finish within {} s{}", connections_.size(),
           options_.shutdown_timeout_ms / 1000,
           options_.handle_signals ? "; a second Ctrl-C ends them at once" : "");
  error_code ignored;
  acceptor_.close(ignored);
  for (const auto& connection : connections_) connection->Drain();
  drain_timer_.expires_after(std::chrono::milliseconds(options_.shutdown_timeout_ms));
  drain_timer_.async_wait([this](error_code error) {
    if (!error) AbortAll();
  });
  FinishIfDrained();
}

void HttpServer::Loop::AbortAll() {
  if (std::exchange(aborting_, true)) return;
  LOG_WARNING("ending {} connections that are still at work", connections_.size());
  for (const auto& connection : connections_) connection->Abort();
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
