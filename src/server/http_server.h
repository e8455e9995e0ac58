// Serves an engine over HTTP.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "engine/messages.h"
#include "server/options.h"
#include "server/request_stream.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

// What a server serves; all of it outlives the server. `outputs` is where the engine's outputs go.
struct ServedEngine {
  EngineClient& engine;
  EngineOutputs& outputs;
  const Tokenizer& tokenizer;
};

class HttpServer {
 public:
  // Binds the port. Errors: kUnavailable if it is taken, kInvalidArgument for a bad host or a chat
  // template that cannot be parsed.
  static Result<std::unique_ptr<HttpServer>> Listen(ServerOptions options, ServedEngine served);
  // REQUIRES: Run is not running.
  ~HttpServer();

  uint16_t port() const;
  // Serves until a stop has drained.
  void Run();
  // Accepts nothing more; requests in flight may end by themselves for shutdown_timeout_ms, then
  // they end with an error. THREAD: any.
  void Stop();

 private:
  class Loop;
  explicit HttpServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace fathom
