// Prometheus metrics, under vLLM's names where the meaning is the same.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/messages.h"
#include "server/openai_response.h"

namespace fathom {

// THREAD: any.
class Metrics {
 public:
  explicit Metrics(const std::string& model_name);
  ~Metrics();

  void OnFirstToken(int64_t prompt_tokens, double seconds_since_arrival);
  void OnTokens(int64_t tokens);
  void OnTokenGap(double seconds);  // between two deliveries of one choice

  struct Ended {
    std::string_view reason;  // "stop", "length", "abort" or "error"
    int64_t prompt_tokens, generated_tokens;
    double seconds;               // from arrival
    double seconds_to_first = 0;  // if there was one
  };
  void OnEnded(const Ended& ended);
  void OnHttp(std::string_view method, std::string_view handler, int status);
  void OnKey(const std::string& name, int status, const Usage& usage);

  // The exposition text, with the engine's gauges as they are now.
  std::string Render(const EngineStats& stats);
  static constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct Families;
  const std::unique_ptr<Families> families_;
};

}  // namespace fathom
