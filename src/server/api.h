// The endpoints: an HTTP request to an answer, or to a Generation that will be one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "chat/chat_template.h"
#include "engine/messages.h"
#include "server/cors.h"
#include "server/generation.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/openai_request.h"
#include "server/options.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

// THREAD: any.
class Api {
 public:
  using Answer = std::variant<HttpResponse, std::unique_ptr<Generation>>;

  // `options`, `engine` and `tokenizer` must outlive this. `chat_template` may be absent.
  Api(const ServerOptions& options, EngineClient& engine, const Tokenizer& tokenizer,
      std::optional<ChatTemplate> chat_template);

  // What can be refused before the body is read: unknown paths, methods, keys, content types. Also
  // answers OPTIONS.
  std::optional<HttpResponse> CheckHead(const HttpRequest& head) const;
  // REQUIRES: CheckHead has nothing against it.
  Answer Handle(const HttpRequest& request);

  // The route's own path, for metrics: never the client's text.
  static std::string_view RouteName(std::string_view path);
  Metrics& metrics() { return metrics_; }
  const CorsPolicy& cors() const { return cors_; }

 private:
  struct Route;
  static const Route kRoutes[];
  static const Route* FindRoute(std::string_view path);

  Answer Health(const HttpRequest& request);
  Answer Version(const HttpRequest& request);
  Answer Models(const HttpRequest& request);
  Answer MetricsText(const HttpRequest& request);
  Answer Chat(const HttpRequest& request);
  Answer Completions(const HttpRequest& request);
  Answer Tokenize(const HttpRequest& request);
  Answer Detokenize(const HttpRequest& request);

  std::optional<ApiError> CheckModel(const std::string& name) const;
  std::optional<ApiError> CheckRoom(size_t choices) const;
  // Renders and tokenises. `*parser` is set to how the answer is to be read.
  std::optional<ApiError> EncodeChat(const ChatPrompt& prompt, std::vector<TokenId>* tokens,
                                     OutputParserOptions* parser) const;
  std::optional<ApiError> EncodeText(const TextOrTokens& prompt, bool add_special_tokens,
                                     std::vector<TokenId>* tokens) const;
  // How many tokens a prompt may be followed by, or why it does not fit.
  std::optional<ApiError> FitTokens(const GenerationParams& params, const char* what,
                                    int32_t fallback, GenerationPrompt* prompt) const;
  GenerationSetup Setup(const char* id_prefix, const HttpRequest& request, GenerationParams params);
  RequestLimits Limits() const;

  const ServerOptions& options_;
  const CorsPolicy cors_;
  EngineClient& engine_;
  const Tokenizer& tokenizer_;
  const std::optional<ChatTemplate> chat_template_;
  const SteadyClock clock_;
  const int64_t started_;  // Unix time
  const size_t max_token_bytes_;
  Metrics metrics_;
};

}  // namespace fathom
