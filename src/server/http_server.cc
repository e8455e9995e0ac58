#include "server/http_server.h"

#include <boost/asio/basic_socket_acceptor.hpp>
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
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/rare_warning.h"
#include "server/access.h"
#include "server/api.h"
#include "server/connection.h"
#include "server/connection_places.h"
#include "server/http_wire.h"
#include "server/json_body.h"
#include "server/refused_connections.h"

namespace fathom {

namespace asio = boost::asio;
using Socket = ClientSocket::Socket;
using boost::system::error_code;

namespace {

// To send the last errors, and to log whom they did not reach: with all that ends then, a second.
constexpr int kAbortGraceMs = 600, kDropGraceMs = 150;

std::string Connections(size_t count) {
  return fmt::format("{} connection{}", count, count == 1 ? "" : "s");
}

}  // namespace

class HttpServer::Loop {
 public:
  explicit Loop(ServerOptions options)
      : options_(std::move(options)),
        acceptor_(asio::make_strand(io_)),
        drain_timer_(acceptor_.get_executor()) {}

  ~Loop() {
    if (context_) context_->stopping = true;
    workers_.Stop();
  }

  Status Listen(BoundSocket port);
  void Run();
  void Serve(ServedEngine served);
  void Begin(ServerState state);
  void Stop() {
    asio::post(acceptor_.get_executor(), [this] { BeginDrain(); });
  }
  void Reread() {
    asio::post(workers_.For(0), [this] { RereadFiles(); });
  }

 private:
  asio::awaitable<void> Accept();
  void AwaitSignal();
  void RereadFiles();
  // On the acceptor's strand.
  void SayThatItLeaves();
  void Leave();
  void BeginDrain();
  void AbortAll();
  void DropAll();
  void FinishIfDrained();
  void After(int ms, std::function<void()> then);  // instead of what was to come
  void Admit(Socket socket);
  void Refuse(Socket socket, const ApiError& error);
  void Open(Socket socket, const std::string& address, std::optional<ApiError> refusal);
  void WarnOfAccept(error_code error);

  const ServerOptions options_;
  std::unique_ptr<Access> access_;
  std::unique_ptr<Tls> tls_;  // null: in the clear
  std::optional<BoundSocket> bound_;
  std::unique_ptr<Api> api_;  // once Serve was called
  std::optional<ConnectionContext> context_;
  asio::io_context io_;  // with it go the connections that are still there
  Workers workers_;
  asio::basic_socket_acceptor<asio::generic::stream_protocol> acceptor_;
  std::unique_ptr<asio::signal_set> signals_;  // null: the system's action, which ends it
  asio::steady_timer drain_timer_;
  // On the acceptor's strand, all of it.
  ConnectionPlaces places_{options_};
  bool aborting_ = false, said_that_it_leaves_ = false;
  RefusedConnections refused_{acceptor_.get_executor()};
  const SteadyClock clock_;
  RareWarning failed_accepts_{clock_};
};

Status HttpServer::Loop::Listen(BoundSocket port) {
  access_ = TRY(Access::Make(options_));
  context_.emplace(options_, *access_, workers_);
  if (options_.tls.wanted()) tls_ = TRY(Tls::Read(options_.tls));
  error_code error;
  const asio::generic::stream_protocol protocol(port.family(),
                                                port.family() == AF_UNIX ? 0 : IPPROTO_TCP);
  acceptor_.assign(protocol, port.Release(), error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  // Another program may bind it too, until one of them listens.
  if (error) return Unavailable("cannot listen on port {}: {}", port.port(), error.message());
  bound_.emplace(std::move(port));
  return {};
}

void HttpServer::Loop::Run() {
  asio::co_spawn(acceptor_.get_executor(), Accept(), asio::detached);
  std::vector<std::jthread> threads;
  for (int i = 1; i < options_.io_threads; ++i) threads.emplace_back([this] { io_.run(); });
  io_.run();
}

void HttpServer::Loop::Serve(ServedEngine served) {
  CHECK(!served.model_names.empty() && served.vocab_size > 0, "a served engine is not filled in");
  api_ = std::make_unique<Api>(options_, context_->metrics, std::move(served));
  context_->api = api_.get();
  Begin(ServerState::kReady);
}

void HttpServer::Loop::Begin(ServerState state) {
  ServerState loading = ServerState::kLoading;
  context_->state.compare_exchange_strong(loading, state);
  if (!options_.handle_signals) return;
  // Now, and not when a thread comes to it: whoever reads that it is ready may signal at once.
  auto signals = std::make_unique<asio::signal_set>(acceptor_.get_executor(), SIGTERM, SIGINT);
  if (HasFilesToReread(options_)) signals->add(SIGHUP);
  asio::post(acceptor_.get_executor(), [this, signals = std::move(signals)]() mutable {
    if (!acceptor_.is_open()) return;  // the engine has failed meanwhile, and all is over
    signals_ = std::move(signals);
    AwaitSignal();
  });
}

void HttpServer::Loop::RereadFiles() {
  const auto say = [](const char* what, const Status& status) {
    if (status.ok()) {
      LOG_INFO("{} were read again", what);
    } else {
      LOG_ERROR("{} stay as they were: {}", what, status.message());
    }
  };
  if (!options_.api_key_file.empty()) say("keys", access_->RereadKeys());
  if (tls_) say("certificates", tls_->Reread());
}

void HttpServer::Loop::AwaitSignal() {
  signals_->async_wait([this](error_code error, int signal) {
    if (error) return;
    if (signal == SIGHUP) {
      Reread();
      return AwaitSignal();
    }
    if (aborting_) {
      LOG_WARNING("stopping at once");
      io_.stop();
      return;
    }
    AwaitSignal();  // before the drain, which may be over at once and then ends this wait too
    const ServerState state = context_->state;
    if (state == ServerState::kFollowing) return BeginDrain();
    if (state != ServerState::kReady) return AbortAll();
    signal == SIGTERM ? Leave() : BeginDrain();
  });
}

asio::awaitable<void> HttpServer::Loop::Accept() {
  while (acceptor_.is_open()) {
    error_code error;
    Socket socket = co_await acceptor_.async_accept(
        asio::make_strand(io_), asio::redirect_error(asio::use_awaitable, error));
    if (!acceptor_.is_open()) co_return;
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
  if (!failed_accepts_.OnHappened()) return;
  LOG_WARNING("no connection can be accepted for now: {}", error.message());
}

void HttpServer::Loop::Admit(Socket socket) {
  const std::string address = ClientAt(socket);
  if (address.empty()) return;  // gone already
  ConnectionPlaces::Place place = places_.Find(address);
  if (place.found) {
    Open(std::move(socket), address, std::move(place.refusal));
  } else {
    Refuse(std::move(socket), *place.refusal);
  }
}

void HttpServer::Loop::Refuse(Socket socket, const ApiError& error) {
  context_->metrics.OnRefusedConnection(NameOfRefusal(error));
  // Agreeing on keys, only to refuse, is more work than it is worth.
  if (!tls_) refused_.Add(std::move(socket), ClosingAnswer(error));
}

void HttpServer::Loop::Open(Socket socket, const std::string& address,
                            std::optional<ApiError> refusal) {
  const bool reserved = refusal.has_value();
  auto connection = std::make_shared<Connection>(
      std::move(socket), tls_ ? tls_->context() : nullptr, *context_, std::move(refusal));
  places_.Add(connection, address, reserved);
  connection->Start([this, connection] {
    asio::post(acceptor_.get_executor(), [this, connection] {
      places_.Remove(connection);
      FinishIfDrained();
    });
  });
}

void HttpServer::Loop::SayThatItLeaves() {
  if (options_.on_leaving && !std::exchange(said_that_it_leaves_, true)) options_.on_leaving();
}

// Whoever sends requests here by what /health says has a while to notice.
void HttpServer::Loop::Leave() {
  SayThatItLeaves();
  if (options_.drain_delay_ms == 0) return BeginDrain();
  context_->state = ServerState::kLeaving;
  LOG_INFO("stopping in {} s: not ready any more, and serving until then",
           options_.drain_delay_ms / 1000.0);
  After(options_.drain_delay_ms, [this] { BeginDrain(); });
}

// Connections are still accepted, to be told so, until those that are there now have ended.
void HttpServer::Loop::BeginDrain() {
  const ServerState before = context_->state.exchange(ServerState::kDraining);
  if (before == ServerState::kDraining) return;
  SayThatItLeaves();
  const bool served = before == ServerState::kReady || before == ServerState::kLeaving;
  if (served) {
    LOG_INFO("stopping: {} may finish within {} s{}", Connections(places_.size()),
             options_.shutdown_timeout_ms / 1000.0,
             options_.handle_signals ? "; a second signal ends them at once" : "");
  }
  places_.AdmitGuests();
  places_.EndIdle();
  After(served ? options_.shutdown_timeout_ms : kAbortGraceMs, [this] { AbortAll(); });
  FinishIfDrained();
}

void HttpServer::Loop::AbortAll() {
  if (std::exchange(aborting_, true)) return;
  BeginDrain();
  if (places_.size() == 0) return;
  LOG_WARNING("ending {} still at work", Connections(places_.size()));
  places_.AbortAll();
  After(kAbortGraceMs, [this] { DropAll(); });
}

// Those who neither send nor read: their requests have a line in the log, too.
void HttpServer::Loop::DropAll() {
  places_.DropAll();
  After(kDropGraceMs, [this] { io_.stop(); });
}

void HttpServer::Loop::FinishIfDrained() {
  if (context_->state != ServerState::kDraining || places_.but_guests() > 0) return;
  error_code ignored;
  acceptor_.close(ignored);
  if (signals_) signals_->cancel();
  refused_.Close();
  if (places_.size() == 0) {
    drain_timer_.cancel();
  } else if (!std::exchange(aborting_, true)) {
    places_.EndIdle();
    After(kAbortGraceMs, [this] { DropAll(); });
  }
}

void HttpServer::Loop::After(int ms, std::function<void()> then) {
  drain_timer_.expires_after(std::chrono::milliseconds(ms));
  drain_timer_.async_wait([then = std::move(then)](error_code error) {
    if (!error) then();
  });
}

HttpServer::HttpServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::Listen(ServerOptions options, BoundSocket port) {
  CHECK(options.io_threads > 0, "a server without threads");
  const size_t all = options.max_request_memory_bytes;
  const size_t largest = MaxRequestMemory(options.max_body_bytes);
  if (const size_t least = LeastRequestMemory(options.max_body_bytes); all < least) {
    return InvalidArgument(
        "--max-request-memory-bytes {} is too little for bodies of {} (--max-body-bytes): one may "
        "take {}, three quarters of at least {}",
        all, options.max_body_bytes, largest, least);
  }
  if (options.max_client_memory_bytes == 0) {
    options.max_client_memory_bytes = MaxClientMemory(all, options.max_body_bytes);
  } else if (options.max_client_memory_bytes < largest) {
    return InvalidArgument(
        "--max-client-memory-bytes {} is too little for bodies of {} (--max-body-bytes): one may "
        "take {}",
        options.max_client_memory_bytes, options.max_body_bytes, largest);
  }
  options.loopback = port.loopback();
  auto loop = std::make_unique<Loop>(std::move(options));
  TRY(loop->Listen(std::move(port)));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(loop)));
}

void HttpServer::Run() {
  loop_->Run();
}

void HttpServer::Follow() {
  loop_->Begin(ServerState::kFollowing);
}

void HttpServer::Serve(ServedEngine served) {
  loop_->Serve(std::move(served));
}

void HttpServer::Stop() {
  loop_->Stop();
}

void HttpServer::Reread() {
  loop_->Reread();
}

}  // namespace fathom
