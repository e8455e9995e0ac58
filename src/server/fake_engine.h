// An engine for tests: it says what a script tells it to, in its own time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "server/request_stream.h"

namespace fathom {

// What a request gets: a token each tick, then the end.
struct Script {
  enum class End { kStop, kLength, kError, kNever };
  std::vector<TokenId> tokens;  // with kStop the last one is the stop token
  End end = End::kLength;       // with kNever the tokens come again and again
  bool starts = true;           // false: nothing ever comes
};

class FakeEngine final : public EngineClient {
 public:
  using Scripter = std::function<Script(const GenerateRequest&)>;

  FakeEngine(EngineOutputs& outputs, Scripter scripter, std::chrono::microseconds tick,
             int capacity = 64)
      : outputs_(outputs), scripter_(std::move(scripter)), tick_(tick), capacity_(capacity) {
    thread_ = std::jthread([this](std::stop_token stop) { Loop(stop); });
  }

  Status Submit(GenerateRequest request) override {
    Script script = scripter_(request);
    std::lock_guard lock(mutex_);
    if (full_ || static_cast<int>(live_.size()) >= capacity_) {
      ++refused_;
      return ResourceExhausted("the queue is full");
    }
    ++submitted_;
    seen_.push_back(request);
    live_[request.id] = {std::move(request), std::move(script), 0};
    return {};
  }
  void Cancel(RequestId id) override {
    std::lock_guard lock(mutex_);
    cancelled_ += static_cast<int>(live_.erase(id));
  }
  void ResetPrefixCache() override { ++resets_; }
  bool HasRoom(int requests) const override {
    if (throws_) throw std::runtime_error("no room to count in");
    std::lock_guard lock(mutex_);
    return static_cast<int>(live_.size()) + requests <= capacity_;
  }
  EngineStats Stats() const override {
    std::lock_guard lock(mutex_);
    const auto running = static_cast<int64_t>(live_.size());
    return {.groups = {{.running = running, .kv_usage = 0.25}},
            .running = running,
            .kv_usage = 0.25,
            .preemptions = 3};
  }
  Status status() const override { return failed_ ? Internal("it failed") : Status(); }
  int32_t max_model_len() const override { return 4096; }

  int resets() const { return resets_; }
  // Requests that HasRoom() has room for are refused, as where others were quicker.
  void SetFull(bool full) { full_ = full; }
  void FailFromNowOn() { failed_ = true; }
  void ThrowFromNowOn() { throws_ = true; }  // as a library might

  int cancelled() const {
    std::lock_guard lock(mutex_);
    return cancelled_;
  }
  int refused() const {
    std::lock_guard lock(mutex_);
    return refused_;
  }
  int live() const {
    std::lock_guard lock(mutex_);
    return static_cast<int>(live_.size());
  }
  std::vector<GenerateRequest> seen() const {
    std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  struct Live {
    GenerateRequest request;
    Script script;
    size_t said;
  };

  static TokenLogprobs Logprobs(TokenId id, int top) {
    TokenLogprobs logprobs{.logprob = -0.5f};
    for (int i = 0; i < top; ++i) logprobs.top.emplace_back(TokenId(Raw(id) + i), -0.5f - i);
    return logprobs;
  }

  // The next output of `live`; its `finish` is set at the end.
  static RequestOutput Next(Live& live) {
    const GenerateRequest& request = live.request;
    const Script& script = live.script;
    RequestOutput output{.id = request.id};
    if (live.said == 0 && request.prompt_logprobs >= 0) {
      for (size_t i = 1; i < request.prompt.size(); ++i) {
        output.prompt_logprobs.push_back(Logprobs(request.prompt[i], request.prompt_logprobs));
      }
    }
    if (!script.tokens.empty()) {
      const TokenId id = script.tokens[live.said++ % script.tokens.size()];
      output.tokens.push_back({id, {}});
      if (request.sampling.logprobs >= 0) {
        output.tokens[0].logprobs = Logprobs(id, request.sampling.logprobs);
      }
    }
    const bool said_all = live.said >= script.tokens.size();
    if (said_all && script.end == Script::End::kError) {
      output.finish = FinishReason::kError;
      output.error = Internal("NaN in the logits");
    } else if (said_all && script.end == Script::End::kStop) {
      output.finish = FinishReason::kStop;
    } else if ((said_all && script.end == Script::End::kLength) ||
               live.said >= static_cast<size_t>(request.max_tokens)) {
      output.finish = FinishReason::kLength;
    }
    return output;
  }

  void Loop(std::stop_token stop) {
    while (!stop.stop_requested()) {
      std::vector<RequestOutput> outputs;
      {
        std::lock_guard lock(mutex_);
        for (auto it = live_.begin(); it != live_.end();) {
          if (it->second.script.starts) outputs.push_back(Next(it->second));
          const bool ended = it->second.script.starts && outputs.back().finish;
          it = ended ? live_.erase(it) : std::next(it);
        }
      }
      outputs_.Deliver(std::move(outputs));
      std::this_thread::sleep_for(tick_);
    }
  }

  EngineOutputs& outputs_;
  const Scripter scripter_;
  const std::chrono::microseconds tick_;
  const int capacity_;
  std::atomic<bool> throws_{false}, full_{false}, failed_{false};
  std::atomic<int> resets_{0};
  mutable std::mutex mutex_;
  std::map<RequestId, Live> live_;                   // guarded by mutex_
  std::vector<GenerateRequest> seen_;                // guarded by mutex_
  int submitted_ = 0, cancelled_ = 0, refused_ = 0;  // guarded by mutex_
  std::jthread thread_;
};

}  // namespace fathom
