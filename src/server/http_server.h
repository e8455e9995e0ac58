// Serves an engine over HTTP.
#pragma once

#include <memory>

#include "base/status.h"
#include "server/bound_socket.h"
#include "server/options.h"
#include "server/served_engine.h"

namespace fathom {

class HttpServer {
 public:
  // Listens on `port`. kUnavailable if it cannot, kInvalidArgument for options that cannot be
  // taken.
  static Result<std::unique_ptr<HttpServer>> Listen(ServerOptions options, BoundSocket port);
  // REQUIRES: Run is not running.
  ~HttpServer();

  // Until Serve is called all are told that the model is loading; then serves until a stop has
  // drained.
  void Run();
  // Once. THREAD: any.
  void Serve(ServedEngine served);
  // Instead of Serve(): only says that it is there, for its ranks serve another host.
  void Follow();
  // No request begins any more; those in flight may end by themselves for shutdown_timeout_ms, then
  // they end with an error. THREAD: any.
  void Stop();
  // Reads the files of keys and certificates again. One that cannot be taken is logged, and changes
  // nothing. THREAD: any.
  void Reread();

 private:
  class Loop;
  explicit HttpServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace fathom
