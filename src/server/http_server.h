// Serves an engine over HTTP.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/status.h"
#include "chat/chat_template.h"
#include "engine/messages.h"
#include "server/bound_port.h"
#include "server/options.h"
#include "server/request_stream.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

// What a server serves; what is referred to outlives the server. `outputs` is where the engine's
// outputs go. Without a template there is no chat.
struct ServedEngine {
  EngineClient& engine;
  EngineOutputs& outputs;
  const Tokenizer& tokenizer;
  std::optional<ChatTemplate> chat_template;
};

class HttpServer {
 public:
  // Listens on `port`. kUnavailable if it cannot.
  static Result<std::unique_ptr<HttpServer>> Listen(ServerOptions options, BoundPort port,
                                                    ServedEngine served);
  // REQUIRES: Run is not running.
  ~HttpServer();

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
