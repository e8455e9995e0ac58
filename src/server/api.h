// The endpoints: an HTTP request to an answer, or to a Generation that will be one.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/work_limits.h"
#include "engine/messages.h"
#include "server/chat_generation.h"
#include "server/generation.h"
#include "server/http.h"
#include "server/http_metrics.h"
#include "server/metrics.h"
#include "server/openai_request.h"
#include "server/options.h"
#include "server/prompt_encoder.h"
#include "server/response_store.h"
#include "server/routes.h"
#include "server/served_engine.h"
#include "server/text_for_all.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

// THREAD: any.
class Api {
 public:
  using Answer = std::variant<HttpResponse, std::unique_ptr<Generation>>;

  // `options` and `http_metrics` must outlive this.
  Api(const ServerOptions& options, HttpMetrics& http_metrics, ServedEngine served);

  // Reads, renders and tokenises within `limits`. REQUIRES: Access has nothing against it.
  Answer Handle(HttpRequest& request, const WorkLimits& limits);

  Metrics& metrics() { return metrics_; }
  EngineClient& engine() { return engine_; }
  EngineOutputs& outputs() { return outputs_; }
  GrammarCompiler* grammars() { return served_.grammars; }

 private:
  Answer Dispatch(Endpoint endpoint, HttpRequest& request, const WorkLimits& limits);
  HttpResponse Load() const;
  HttpResponse Version() const;
  HttpResponse Models(const HttpRequest& request) const;
  HttpResponse MetricsText(const HttpRequest& request);
  static HttpResponse Description();
  HttpResponse ResetPrefixCache();
  Answer Chat(HttpRequest& request, const WorkLimits& limits);
  Answer Messages(HttpRequest& request, const WorkLimits& limits);
  HttpResponse CountTokens(HttpRequest& request, const WorkLimits& limits);
  Answer Responses(HttpRequest& request, const WorkLimits& limits);
  HttpResponse StoredResponse(const HttpRequest& request, const WorkLimits& limits);
  HttpResponse CancelResponse(const HttpRequest& request, const WorkLimits& limits);
  HttpResponse ServerInfo() const;
  Answer Completions(HttpRequest& request, const WorkLimits& limits);
  HttpResponse Tokenize(HttpRequest& request, const WorkLimits& limits);
  // `param`: what they are of, for errors.
  HttpResponse TokensAnswer(std::span<const TokenId> tokens, bool with_strings, const char* param,
                            const WorkLimits& limits) const;
  HttpResponse Detokenize(HttpRequest& request, const WorkLimits& limits);

  std::optional<ApiError> CheckModel(const std::string& name) const;
  std::optional<ApiError> TakePlaces(const HttpRequest& request, size_t choices,
                                     PlacesInFlight* places) const;
  // Of a chat: what it asks of the engine, and how its answer is read.
  std::optional<ApiError> Prepare(ChatRequest chat, const HttpRequest& request,
                                  const WorkLimits& limits, GenerationSetup* setup,
                                  ChatOutputOptions* output) const;
  GenerationSetup Setup(const char* id_prefix, const HttpRequest& request,
                        GenerationParams params) const;
  RequestLimits Limits() const;

  const ServerOptions& options_;
  HttpMetrics& http_metrics_;
  const ServedEngine served_;
  EngineClient& engine_;
  EngineOutputs& outputs_;
  const Tokenizer& tokenizer_;
  const PromptEncoder prompts_;
  const SteadyClock clock_;
  const int64_t started_;  // Unix time
  mutable Metrics metrics_;
  TextForAll metrics_text_;
  ResponseStore responses_;
};

}  // namespace fathom
