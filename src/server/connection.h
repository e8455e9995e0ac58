// One client's connection: its requests, one after the other, and their answers.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <functional>
#include <memory>
#include <string>

#include "server/api.h"
#include "server/request_stream.h"

namespace fathom {

// What all connections of a server share.
struct ConnectionContext {
  const ServerOptions& options;
  Api& api;
  EngineClient& engine;
  EngineOutputs& outputs;
  boost::asio::thread_pool& workers;  // for requests whose text is long
  std::atomic<size_t> inflight_body_bytes{0};
  std::atomic<bool> draining{false};
};

// THREAD: all but Start, Drain and Abort run on the connection's strand.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  // REQUIRES: the socket's executor is a strand.
  Connection(Socket socket, ConnectionContext& context);

  // Serves until the connection ends, then calls `done` once.
  void Start(std::function<void()> done);
  // THREAD: any. Ends the connection once its present request has been answered.
  void Drain();
  // THREAD: any. Ends the present request with an error.
  void Abort();

 private:
  template <class T>
  using awaitable = boost::asio::awaitable<T>;
  struct Exchange;  // a request and how its answer is to be framed

  awaitable<void> Serve();
  awaitable<bool> ServeOne();  // whether another request may follow
  awaitable<bool> WaitForRequest();
  std::optional<HttpResponse> CheckHead(Exchange& exchange) const;
  awaitable<void> ReadBody(Exchange& exchange, boost::system::error_code& error);
  awaitable<bool> Refuse(Exchange& exchange, const ApiError& error);
  awaitable<bool> Handle(Exchange& exchange);
  awaitable<bool> Generate(Exchange& exchange, Generation& generation);
  awaitable<bool> Pump(Exchange& exchange, Generation& generation, RequestStream& stream);
  awaitable<bool> Respond(Exchange& exchange, const HttpResponse& response);
  awaitable<void> Linger();
  void Log(const Exchange& exchange, int status) const;

  // Waits until something has changed since the last call: output, a write's end, the peer's,
  // Abort.
  awaitable<void> Changed();
  void Notify();
  awaitable<void> Flushed();  // everything sent, or the peer gone

  void Send(std::string bytes);  // in order, without waiting
  void StartWrite();
  size_t unsent() const;
  void StartWatch();  // reads on while answering: that is how a disconnect is noticed
  awaitable<void> StopWatch();
  void SetDeadline(int ms);  // the connection is dropped when it passes
  void ClearDeadline();
  void Drop();  // at once, without sending what is left

  Socket socket_;
  ConnectionContext& context_;
  std::string peer_;
  boost::beast::flat_buffer buffer_;
  boost::asio::steady_timer deadline_, changed_timer_;
  bool changed_ = false;
  bool idle_ = false;  // between requests
  bool fresh_ = true;  // before the first one
  bool watching_ = false, watch_wanted_ = false;
  bool writing_ = false;
  bool gone_ = false;  // the peer, or the socket
  bool aborting_ = false;
  std::string sending_, outbox_;  // being written; to be written after it
  size_t sent_ = 0;               // of sending_
};

}  // namespace fathom
