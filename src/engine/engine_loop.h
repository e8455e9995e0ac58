// The engine without its thread, so that a simulation can turn it by hand.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/executor.h"
#include "engine/grammar_guide.h"
#include "engine/grammar_workers.h"
#include "engine/messages.h"
#include "engine/request_inbox.h"
#include "scheduler/scheduler.h"
#include "speculation/draft_depth.h"

namespace fathom {

class EngineLoop {
 public:
  // Borrows `executor` and `clock`.
  EngineLoop(const EngineOptions& options, Executor* executor, const Clock* clock,
             Engine::OutputCallback on_output);

  // THREAD: any. As EngineClient.
  Status Submit(GenerateRequest request);
  void Cancel(RequestId id) { inbox_.Cancel(id); }
  void ResetPrefixCache() { inbox_.ResetPrefixCache(); }
  bool HasRoom(int requests) const { return inbox_.HasRoom(requests); }
  EngineStats Stats() const;
  const EngineOptions& options() const { return options_; }
  // Cancels whatever lives, and refuses what comes.
  void Stop() { inbox_.Stop(Unavailable("the engine is stopping: ask another server, or later")); }
  // As Engine.
  Status status() const;
  void Abandon(Status why);

  // THREAD: the engine's.
  // One round: takes what came, plans and submits until `depth` steps are in flight, applies the
  // oldest one's results, hands out what they brought. False when there is nothing left to do.
  bool Step();
  // Blocks until there is something to do; false once stopped.
  bool WaitForNews() { return inbox_.WaitForNews(); }
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  struct Live {
    int64_t arrived_ns = 0;
    std::optional<int64_t> entered_ns;  // when it first stood in a plan
    bool answered = false;              // its first token is out
    // Until then:
    std::vector<TokenLogprobs> prompt_logprobs;
    std::optional<GrammarGuide> guide;  // of a request with a grammar
  };

  // The rows of all groups.
  struct StepInFlight {
    uint64_t step = 0;
    std::vector<StepRow> rows;
    // Of each group, those whose masks are not sent yet.
    std::vector<std::vector<RequestId>> masked;
    // If drafts adapt:
    int32_t decodes = 0;  // in the fullest group, about
    DraftDepth::Choice drafts;
    int64_t submitted_ns = 0;
  };

  void DrainInbox();
  // Ends it now. `why`: OK if it was cancelled.
  void EndNow(RequestId id, const Status& why);
  void EndThoseThatWaitTooLong();
  bool SubmitNext();
  // Of the oldest step in flight: all tokens before it are known.
  void SendMasks();
  void FollowGrammars(const std::vector<StepRow>& rows, std::vector<RowResult>& results);
  void ChooseDrafts(StepInFlight& step);
  void JudgeDrafts(const StepInFlight& step, const StepResult& result);
  void ApplyOldest();
  // Ends all, and the loop.
  void Fail(Status why);
  void AddOutput(const StepRow& row, RowResult result, const RowEffect& effect);
  void HandOut();
  void LogThroughput();
  void RestartThroughput();

  const EngineOptions options_;
  Executor* const executor_;
  const Clock* const clock_;
  const Engine::OutputCallback on_output_;
  RequestInbox inbox_;

  // THREAD: the engine's.
  Scheduler scheduler_;
  std::map<RequestId, Live> live_;
  std::deque<RequestId> arrivals_;  // as they came: those that have not entered, and some others
  std::deque<StepInFlight> in_flight_;
  std::vector<RequestOutput> outputs_;  // of this round
  int64_t steps_ = 0;
  TokensOfSteps tokens_of_steps_;
  DraftStats drafts_;
  GrammarWorkers grammar_workers_;
  std::optional<DraftDepth> draft_depth_;
  int64_t last_result_ns_ = 0;
  // At the last log line, or when the work began after it.
  int64_t logged_ns_ = 0;
  int64_t logged_prompt_tokens_ = 0;
  int64_t logged_generated_tokens_ = 0;

  mutable std::mutex stats_mutex_;
  EngineStats stats_;  // guarded by stats_mutex_
  Status failure_;     // guarded by stats_mutex_
};

}  // namespace fathom
