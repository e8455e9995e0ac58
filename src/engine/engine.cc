#include "engine/engine.h"

#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "engine/engine_loop.h"

namespace fathom {

class Engine::Loop {
 public:
  Loop(const EngineOptions& options, std::unique_ptr<Executor> executor, const Clock* clock,
       OutputCallback on_output)
      : executor_(std::move(executor)),
        turns_(options, executor_.get(), clock, std::move(on_output)) {}
  ~Loop() {
    turns_.Stop();
    if (thread_.joinable()) {
      thread_.join();
    } else {
      TurnUntilIdle();  // never started: what was submitted is cancelled here
    }
  }

  void Start() {
    CHECK(!thread_.joinable(), "the engine was started twice");
    thread_ = std::thread([this] {
      while (turns_.WaitForNews()) TurnUntilIdle();
      TurnUntilIdle();
      std::lock_guard lock(mutex_);
      if (!turns_.status().ok() && on_failure_) on_failure_();
    });
  }
  void OnFailure(std::function<void()> callback) {
    std::lock_guard lock(mutex_);
    on_failure_ = std::move(callback);
  }

  EngineLoop& turns() { return turns_; }

 private:
  void TurnUntilIdle() {
    while (turns_.Step()) {
    }
  }

  const std::unique_ptr<Executor> executor_;
  EngineLoop turns_;
  std::thread thread_;
  std::mutex mutex_;
  std::function<void()> on_failure_;  // guarded by mutex_
};

Engine::Engine(EngineOptions options, std::unique_ptr<Executor> executor, const Clock* clock,
               OutputCallback on_output)
    : loop_(std::make_unique<Loop>(options, std::move(executor), clock, std::move(on_output))) {}

Engine::~Engine() = default;

void Engine::Start() {
  loop_->Start();
}

Status Engine::status() const {
  return loop_->turns().status();
}

void Engine::OnFailure(std::function<void()> callback) {
  loop_->OnFailure(std::move(callback));
}

void Engine::Abandon(Status why) {
  loop_->turns().Abandon(std::move(why));
}

Status Engine::Submit(GenerateRequest request) {
  return loop_->turns().Submit(std::move(request));
}

void Engine::Cancel(RequestId id) {
  loop_->turns().Cancel(id);
}

void Engine::ResetPrefixCache() {
  loop_->turns().ResetPrefixCache();
}

bool Engine::HasRoom(int requests) const {
  return loop_->turns().HasRoom(requests);
}

EngineStats Engine::Stats() const {
  return loop_->turns().Stats();
}

int32_t Engine::max_model_len() const {
  return loop_->turns().options().scheduler.max_model_len;
}

}  // namespace fathom
