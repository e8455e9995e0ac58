// Times the engine at work on a fixed number of equal requests.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/rng.h"
#include "base/status.h"
#include "engine/engine.h"

namespace fathom {

struct BatchShape {
  int32_t batch_size = 1;
  int32_t input_len = 512;
  int32_t output_len = 64;  // decode steps that are timed, with every request in each
  // Pipeline stages work on a step each, and these have the requests between them.
  int32_t stages = 1;

  int32_t rows_of_step() const {
    const int32_t steps = std::min(stages, batch_size);
    return (batch_size + steps - 1) / steps;
  }
};

struct DecodeTimes {
  double seconds = 0;
  int64_t tokens = 0;                // with drafts that stand
  double context = 0;                // mean of positions cached before a step, over its rows
  std::vector<double> step_seconds;  // between two results
  double experts = 0;                // that the last step drew in a layer; 0: not counted
};

class EngineMeter {
 public:
  // `seed`: of the prompts. `temperature` 0: greedy.
  EngineMeter(uint64_t seed, float temperature) : temperature_(temperature), rng_(seed) {}

  // Decodes bring up to so many tokens more than one. Before the first request.
  void SetDrafts(int32_t most) { drafts_ = most; }
  // Prompts are random tokens below this. Before the first request.
  void SetVocabulary(int32_t size) { vocab_size_ = size; }

  // `count(tokens)`: how many experts the last step's `tokens` tokens drew in a layer. Called once
  // the engine is idle. Before the first request.
  void CountExperts(std::function<double(int32_t tokens)> count) {
    count_experts_ = std::move(count);
  }

  // THREAD: the engine's. To be its output callback.
  void Deliver(const std::vector<RequestOutput>& outputs);

  // Seconds from the first prompt's arrival until every request has its first token.
  Result<double> TimePrefill(EngineClient& engine, const BatchShape& shape);
  // Decode steps once all prompts are computed.
  Result<DecodeTimes> TimeDecode(EngineClient& engine, const BatchShape& shape);

  // Positions that a request of TimeDecode may take: while the last prompts are computed, the first
  // requests decode already.
  static int64_t MaxPositions(const BatchShape& shape, int32_t prefill_chunk, int32_t drafts = 0);

 private:
  // What one delivery brought.
  struct Event {
    double at_s = 0;
    int64_t tokens = 0;
  };

  Status Submit(EngineClient& engine, const BatchShape& shape, int32_t max_tokens);
  void CancelAll(EngineClient& engine);
  template <class Condition>
  Status WaitUntil(Condition condition);

  float temperature_;
  int32_t vocab_size_ = 1, drafts_ = 0;
  std::function<double(int32_t)> count_experts_;  // may be empty
  Rng rng_;
  uint64_t next_id_ = 1;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  BatchShape shape_;
  std::unordered_map<RequestId, int64_t> live_;  // tokens so far
  int64_t started_ = 0;                          // requests with a token
  int64_t delivered_ = 0;                        // tokens
  std::vector<Event> events_;
  size_t all_started_event_ = 0;  // the delivery that brought the last request's first token
  int64_t early_tokens_ = 0;      // delivered until then
  double last_end_s_ = 0;
  Status failure_;
};

}  // namespace fathom
