// Prometheus metrics of a model and its engine, under vLLM's names where the meaning is the same.
// Those of connections and requests are in http_metrics.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/messages.h"

namespace fathom {

// THREAD: any.
class Metrics {
 public:
  explicit Metrics(const std::string& model_name);
  ~Metrics();

  // `seconds`: since the arrival. `cached_tokens`: of the prompt.
  void OnFirstToken(int64_t prompt_tokens, int64_t cached_tokens, double seconds);
  void OnTokens(int64_t tokens);
  void OnTokenGap(double seconds);  // between two deliveries of one choice

  // A choice, in seconds since its arrival.
  struct Ended {
    std::string_view reason;  // "stop", "length", "abort" or "error"
    int64_t prompt_tokens, cached_tokens, generated_tokens, max_tokens, preemptions;
    double at;
    // If it has tokens: when it entered the batch, and when its first and last ones came.
    double entered = 0, first = 0, last = 0;
  };
  void OnEnded(const Ended& ended);
  // All choices of a prompt.
  void OnPromptEnded(int64_t choices, int64_t most_generated_tokens);

  // The exposition text, with the engine's gauges as they are now.
  // `grammar_bytes`: GrammarCompiler's.
  std::string Render(const EngineStats& stats, size_t grammar_bytes);
  static constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct Families;
  const std::unique_ptr<Families> families_;
};

}  // namespace fathom
