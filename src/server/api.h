// The endpoints: an HTTP request to an answer, or to a Generation that will be one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/work_limits.h"
#include "chat/chat_template.h"
#include "engine/messages.h"
#include "server/cors.h"
#include "server/generation.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/openai_request.h"
#include "server/options.h"
#include "server/prompt_encoder.h"
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
  // Reads, renders and tokenises within `limits`. REQUIRES: CheckHead has nothing against it.
  Answer Handle(const HttpRequest& request, const WorkLimits& limits);

  // Needs no key: says how the server is.
  static bool IsOpen(std::string_view path);
  // The route's own path, for metrics: never the client's text.
  static std::string_view RouteName(std::string_view path);
  Metrics& metrics() { return metrics_; }
  const CorsPolicy& cors() const { return cors_; }

 private:
  struct Route;
  static const Route kRoutes[];
  static const Route* FindRoute(std::string_view path);

  Answer Health(const HttpRequest& request, const WorkLimits& limits);
  Answer Version(const HttpRequest& request, const WorkLimits& limits);
  Answer Models(const HttpRequest& request, const WorkLimits& limits);
  Answer MetricsText(const HttpRequest& request, const WorkLimits& limits);
  Answer Chat(const HttpRequest& request, const WorkLimits& limits);
  Answer Completions(const HttpRequest& request, const WorkLimits& limits);
  Answer Tokenize(const HttpRequest& request, const WorkLimits& limits);
  Answer Detokenize(const HttpRequest& request, const WorkLimits& limits);

  std::optional<ApiError> CheckAccess(const HttpRequest& head, bool open) const;
  std::optional<ApiError> CheckModel(const std::string& name) const;
  std::optional<ApiError> CheckRoom(size_t choices) const;
  GenerationSetup Setup(const char* id_prefix, const HttpRequest& request, GenerationParams params);
  RequestLimits Limits() const;

  const ServerOptions& options_;
  const CorsPolicy cors_;
  const HostPolicy hosts_;
  EngineClient& engine_;
  const Tokenizer& tokenizer_;
  const PromptEncoder prompts_;
  const SteadyClock clock_;
  const int64_t started_;  // Unix time
  Metrics metrics_;
};

}  // namespace fathom
