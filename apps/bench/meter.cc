#include "meter.h"

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/ids.h"

namespace fathom {
namespace {

constexpr int32_t kPlannedAhead = 2;  // steps that run beyond the last one of interest

}  // namespace

void EngineMeter::Deliver(const std::vector<RequestOutput>& outputs) {
  const double now = SecondsNow();
  {
    const std::lock_guard lock(mutex_);
    int64_t tokens = 0, first_tokens = 0;
    for (const RequestOutput& output : outputs) {
      const auto found = live_.find(output.id);
      if (found == live_.end()) continue;
      const auto count = static_cast<int64_t>(output.tokens.size());
      first_tokens += found->second == 0 && count > 0;
      found->second += count;
      tokens += count;
      if (!output.finish) continue;
      if (*output.finish == FinishReason::kError) failure_ = output.error;
      live_.erase(found);
      last_end_s_ = now;
    }
    started_ += first_tokens;
    delivered_ += tokens;
    if (first_tokens > 0) {  // not yet, or just now, have all begun
      all_started_event_ = events_.size();
      early_tokens_ = delivered_;
    }
    if (tokens > 0) events_.push_back({now, tokens});
  }
  changed_.notify_one();
}

int64_t EngineMeter::MaxPositions(const BatchShape& shape, int32_t prefill_chunk, int32_t drafts) {
  const int64_t chunks = (shape.input_len + prefill_chunk - 1) / prefill_chunk;
  // A page more than that: the scheduler keeps one free for each running request.
  const int64_t decodes =
      shape.batch_size * chunks + shape.output_len + kPlannedAhead * shape.stages;
  return shape.input_len + decodes * (1 + drafts) + kPageTokens;
}

Status EngineMeter::Submit(EngineClient& engine, const BatchShape& shape, int32_t max_tokens) {
  std::vector<GenerateRequest> requests(static_cast<size_t>(shape.batch_size));
  for (GenerateRequest& request : requests) {
    request.id = RequestId{next_id_++};
    request.sampling.temperature = temperature_;
    request.sampling.seed = next_id_;
    request.max_tokens = max_tokens;
    for (int32_t i = 0; i < shape.input_len; ++i) {
      request.prompt.push_back(TokenId{static_cast<int32_t>(rng_.Below(vocab_size_))});
    }
  }
  {
    const std::lock_guard lock(mutex_);
    CHECK(live_.empty(), "requests of another run are still there");
    for (const GenerateRequest& request : requests) live_[request.id] = 0;
    shape_ = shape;
    started_ = delivered_ = early_tokens_ = 0;
    all_started_event_ = 0;
    events_.clear();
  }
  for (GenerateRequest& request : requests) TRY(engine.Submit(std::move(request)));
  return {};
}

// Waits for a condition on what has been delivered.
template <class Condition>
Status EngineMeter::WaitUntil(Condition condition) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !failure_.ok() || condition(); });
  return failure_;
}

void EngineMeter::CancelAll(EngineClient& engine) {
  std::vector<RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, tokens] : live_) ids.push_back(id);
  }
  for (const RequestId id : ids) engine.Cancel(id);
}

Result<double> EngineMeter::TimePrefill(EngineClient& engine, const BatchShape& shape) {
  const double begin = SecondsNow();
  TRY(Submit(engine, shape, /*max_tokens=*/1));
  TRY(WaitUntil([this] { return live_.empty(); }));
  const std::lock_guard lock(mutex_);
  return last_end_s_ - begin;
}

Result<DecodeTimes> EngineMeter::TimeDecode(EngineClient& engine, const BatchShape& shape) {
  TRY(Submit(engine, shape, engine.max_model_len() - shape.input_len));
  const auto batch = static_cast<size_t>(shape.batch_size);
  const auto steps = static_cast<size_t>(shape.output_len);
  const auto measured = [&] {
    return started_ == shape.batch_size && events_.size() > all_started_event_ + steps;
  };
  TRY(WaitUntil([&] { return measured() || live_.size() < batch; }));
  DecodeTimes times;
  {
    const std::lock_guard lock(mutex_);
    if (!measured()) {
      return ResourceExhausted(
          "{} requests of {} + {} tokens did not run at the same time: the KV cache is too small "
          "(--kv-cache-memory-bytes)",
          batch, shape.input_len, shape.output_len);
    }
    for (size_t i = 1; i <= steps; ++i) {
      const Event& event = events_[all_started_event_ + i];
      times.tokens += event.tokens;
      times.step_seconds.push_back(event.at_s - events_[all_started_event_ + i - 1].at_s);
      times.seconds += times.step_seconds.back();
    }
    // Of n tokens that a request has, the last one is not yet cached.
    times.context = shape.input_len + static_cast<double>(early_tokens_) / shape.batch_size - 1 +
                    (static_cast<double>(times.tokens) / shape.batch_size - 1) / 2;
  }
  CancelAll(engine);
  TRY(WaitUntil([this] { return live_.empty(); }));
  if (count_experts_) {
    // Pages are free once no step is in flight: nobody else uses the device then.
    for (EngineStats stats = engine.Stats(); stats.free_pages < stats.total_pages;
         stats = engine.Stats()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    times.experts = count_experts_(shape.rows_of_step() * (1 + drafts_));
  }
  const bool all_decode = drafts_ == 0 && shape.stages == 1;
  if (all_decode && times.tokens != int64_t{shape.batch_size} * shape.output_len) {
    return Internal("{} tokens came in {} steps of {} requests", times.tokens, steps, batch);
  }
  return times;
}

}  // namespace fathom
