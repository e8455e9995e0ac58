#include "engine/engine_loop.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/check_request.h"

namespace fathom {
namespace {

constexpr int64_t kLogEveryNs = 10'000'000'000;

FinishReason ReasonOf(SequenceEnd end) {
  switch (end) {
    case SequenceEnd::kStop: return FinishReason::kStop;
    case SequenceEnd::kLength: return FinishReason::kLength;
    case SequenceEnd::kFailed: return FinishReason::kError;
  }
  CHECK(false, "sequence end {}", static_cast<int>(end));
}

// Of each group, the requests of its masked rows.
std::vector<std::vector<RequestId>> MaskedOf(const StepPlans& plans) {
  std::vector<std::vector<RequestId>> groups;
  for (const StepPlan& part : plans.groups) {
    std::vector<RequestId>& masked = groups.emplace_back();
    for (const StepRow& row : part.rows) {
      if (row.masked) masked.push_back(row.request);
    }
  }
  return groups;
}

}  // namespace

void DraftStats::Add(int64_t drafts, int64_t stood) {
  if (drafts == 0) return;
  stood = std::clamp<int64_t>(stood, 0, drafts);
  ++decodes;
  proposed += drafts;
  accepted += stood;
  for (size_t place = 0; place < std::min<size_t>(static_cast<size_t>(stood), kPlaces); ++place) {
    ++accepted_at[place];
  }
}

EngineLoop::EngineLoop(const EngineOptions& options, Executor* executor, const Clock* clock,
                       Engine::OutputCallback on_output)
    : options_(options),
      executor_(executor),
      clock_(clock),
      on_output_(std::move(on_output)),
      inbox_(int64_t{options.scheduler.groups} * options.scheduler.max_num_seqs +
             options.max_queue),
      scheduler_(options.scheduler) {
  if (options.adapts_drafts && options.scheduler.max_drafts > 0) {
    draft_depth_.emplace(options.scheduler.max_drafts);
    for (const StepTime& time : options.step_times) draft_depth_->Expect(time);
  }
  RestartThroughput();
  HandOut();  // so that Stats() is true from the start
}

Status EngineLoop::Submit(GenerateRequest request) {
  TRY(scheduler_.CheckFits(static_cast<int64_t>(request.prompt.size()), request.max_tokens));
  TRY(CheckRequest(request, options_.vocab_size));
  if (request.grammar) request.masked = true;
  request.arrived_ns = clock_->NowNs();
  return inbox_.Put(std::move(request));
}

EngineStats EngineLoop::Stats() const {
  std::vector<RankStats> ranks = executor_->Ranks();
  std::lock_guard lock(stats_mutex_);
  EngineStats stats = stats_;
  stats.waiting += inbox_.untaken();
  stats.ranks = std::move(ranks);
  return stats;
}

Status EngineLoop::status() const {
  std::lock_guard lock(stats_mutex_);
  return failure_;
}

bool EngineLoop::Step() {
  DrainInbox();
  EndThoseThatWaitTooLong();
  while (in_flight_.size() < static_cast<size_t>(options_.scheduler.depth) && SubmitNext()) {
  }
  if (!in_flight_.empty()) ApplyOldest();
  HandOut();
  if (!scheduler_.empty()) return true;
  CHECK(live_.empty(), "{} requests live on that the scheduler has forgotten", live_.size());
  scheduler_.CheckIntegrity();
  return false;
}

void EngineLoop::DrainInbox() {
  RequestInbox::News news = inbox_.Take();
  if (scheduler_.empty()) RestartThroughput();
  if (news.reset_prefix_cache) scheduler_.ResetPrefixCache();
  for (GenerateRequest& request : news.requests) {
    Live& live = live_.emplace(request.id, Live{.arrived_ns = request.arrived_ns}).first->second;
    Status guided;
    if (request.grammar) {
      Result<GrammarGuide> guide = GrammarGuide::Start(request, options_.vocab_size);
      guided = guide.status();
      if (guide.ok()) live.guide = std::move(guide).value();
    }
    arrivals_.push_back(request.id);
    RequestParams& params = request;
    scheduler_.Add(request.id, std::make_shared<const RequestParams>(std::move(params)),
                   request.client, request.cache_salt, request.priority);
    if (!guided.ok()) EndNow(request.id, guided);
  }
  const Status why = status();
  for (RequestId id : news.cancels) EndNow(id, why);
  while (news.stopped && !live_.empty()) EndNow(live_.begin()->first, why);
}

void EngineLoop::EndNow(RequestId id, const Status& why) {
  if (live_.erase(id) == 0) return;
  const bool cancelled = scheduler_.Cancel(id);
  CHECK(cancelled, "request {} lives on after its end", Raw(id));
  RequestOutput output;
  output.id = id;
  output.finish = why.ok() ? FinishReason::kCancelled : FinishReason::kError;
  output.error = why;
  outputs_.push_back(std::move(output));
}

// While any waits others run, so that this is asked once a step.
void EngineLoop::EndThoseThatWaitTooLong() {
  const double most_s = options_.queue_timeout_s;
  for (; !arrivals_.empty(); arrivals_.pop_front()) {
    const auto live = live_.find(arrivals_.front());
    if (live == live_.end() || live->second.entered_ns) continue;
    const double waited_s = static_cast<double>(clock_->NowNs() - live->second.arrived_ns) * 1e-9;
    if (most_s == 0 || waited_s <= most_s) return;
    EndNow(live->first, Unavailable("The request has waited {:.1f} s for a place among those that "
                                    "run, and may wait {} s: try again later.",
                                    waited_s, most_s));
  }
}

bool EngineLoop::SubmitNext() {
  StepInFlight next;
  if (draft_depth_) ChooseDrafts(next);
  StepPlans plans = scheduler_.Plan();
  if (plans.empty()) return false;
  if (!plans.has_rows()) return executor_->Submit(std::move(plans)), true;
  next.step = plans.step();
  next.rows = plans.Rows();
  next.masked = MaskedOf(plans);
  in_flight_.push_back(std::move(next));
  int64_t tokens = 0;
  for (const StepRow& row : in_flight_.back().rows) {
    tokens += row.num_tokens();
    if (row.is_decode()) continue;
    if (std::optional<int64_t>& entered_ns = live_.at(row.request).entered_ns; !entered_ns) {
      entered_ns = clock_->NowNs();
    }
  }
  tokens_of_steps_.Add(tokens);
  executor_->Submit(std::move(plans));
  if (in_flight_.size() == 1) SendMasks();
  return true;
}

void EngineLoop::ChooseDrafts(StepInFlight& step) {
  const int32_t parts = options_.scheduler.groups * options_.scheduler.stages;
  step.decodes = (scheduler_.running() + parts - 1) / parts;
  step.drafts = draft_depth_->Choose(step.decodes);
  step.submitted_ns = clock_->NowNs();
  scheduler_.SetDrafts(step.drafts.drafts);
}

// A step that was waited for behind another took the time between their results.
void EngineLoop::JudgeDrafts(const StepInFlight& step, const StepResult& result) {
  const int64_t now = clock_->NowNs(), before = std::exchange(last_result_ns_, now);
  const bool decodes_only = std::ranges::all_of(step.rows, &StepRow::is_decode);
  if (!step.drafts.settled || !decodes_only) return;
  if (step.submitted_ns < before) {
    draft_depth_->Took(step.decodes, step.drafts.drafts, static_cast<double>(now - before) * 1e-9);
  }
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const auto stood = static_cast<int32_t>(result.rows[i].tokens.size()) - 1;
    if (stood >= 0) draft_depth_->Verified(step.decodes, step.rows[i].drafts, stood);
  }
}

void EngineLoop::SendMasks() {
  if (in_flight_.empty()) return;
  std::vector<StepMasks> groups;
  bool any = false;
  for (const std::vector<RequestId>& requests : std::exchange(in_flight_.front().masked, {})) {
    StepMasks& part = groups.emplace_back(in_flight_.front().step);
    for (const RequestId request : requests) {
      const auto live = live_.find(request);
      part.masks.push_back(live == live_.end() ? std::vector<uint32_t>()
                                               : live->second.guide->masks());
      any = true;
    }
  }
  if (any) executor_->SubmitMasks(std::move(groups));
}

void EngineLoop::FollowGrammars(const std::vector<StepRow>& rows, std::vector<RowResult>& results) {
  std::vector<GuidedRow> guided;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto live = live_.find(rows[i].request);
    if (live == live_.end() || !live->second.guide || results[i].tokens.empty()) continue;
    guided.push_back({&*live->second.guide, &results[i]});
  }
  grammar_workers_.Follow(guided);
}

void EngineLoop::ApplyOldest() {
  StepResult result = executor_->Wait();
  if (!result.status.ok()) return Fail(std::move(result.status));
  const StepInFlight oldest = std::move(in_flight_.front());
  const uint64_t step = oldest.step;
  const std::vector<StepRow>& rows = oldest.rows;
  in_flight_.pop_front();
  CHECK(result.step == step && result.rows.size() == rows.size(),
        "the executor answered step {} with {} rows, not step {} with {}", result.step,
        result.rows.size(), step, rows.size());
  if (draft_depth_) JudgeDrafts(oldest, result);
  for (const RowResult& row : result.rows) {
    drafts_.Add(row.drafts, static_cast<int64_t>(row.tokens.size()) - 1);
  }
  FollowGrammars(rows, result.rows);
  std::vector<RowOutcome> outcomes;
  for (size_t i = 0; i < result.rows.size(); ++i) {
    RowResult& row = result.rows[i];
    if (!row.status.ok() && !rows[i].is_decode()) row.tokens.clear();
    RowOutcome& outcome = outcomes.emplace_back(!row.status.ok());
    for (const GeneratedToken& token : row.tokens) outcome.tokens.push_back(token.id);
  }
  const std::vector<RowEffect> effects = scheduler_.Apply(step, rows, outcomes);
  for (size_t i = 0; i < effects.size(); ++i) {
    if (effects[i].counts) AddOutput(rows[i], std::move(result.rows[i]), effects[i]);
  }
  SendMasks();
  ++steps_;
}

void EngineLoop::Abandon(Status why) {
  {
    std::lock_guard lock(stats_mutex_);
    if (failure_.ok()) {
      LOG_ERROR("the engine has failed: {}", why.message());
      failure_ = std::move(why);
    }
  }
  // The second to come, too: Fail() goes on when it is stopped, whoever was first.
  inbox_.Stop(Unavailable("the engine has failed: ask another server"));
}

void EngineLoop::Fail(Status why) {
  Abandon(std::move(why));
  DrainInbox();  // which ends all that live, as at every stop
  for (; !in_flight_.empty(); in_flight_.pop_front()) {
    const StepInFlight& step = in_flight_.front();
    // Of ended requests.
    scheduler_.Apply(step.step, step.rows, std::vector<RowOutcome>(step.rows.size()));
  }
}

void EngineLoop::AddOutput(const StepRow& row, RowResult result, const RowEffect& effect) {
  const auto live = live_.find(row.request);
  CHECK(live != live_.end(), "a result of request {}, which has ended", Raw(row.request));
  Live& known = live->second;
  std::vector<TokenLogprobs>& prompt_logprobs = known.prompt_logprobs;
  std::move(result.prompt_logprobs.begin(), result.prompt_logprobs.end(),
            std::back_inserter(prompt_logprobs));
  if (!result.tokens.empty()) {
    RequestOutput& output = outputs_.emplace_back();
    output.id = row.request;
    output.tokens = std::move(result.tokens);
    output.prompt_logprobs = std::exchange(prompt_logprobs, {});
    output.cached_tokens = effect.cached_tokens;
    output.preemptions = effect.preemptions;
    if (!std::exchange(known.answered, true))
      output.queued_ns = *known.entered_ns - known.arrived_ns;
  }
  if (!effect.end) return;
  if (*effect.end == SequenceEnd::kFailed) {  // comes by itself, as after a token of another step
    RequestOutput& output = outputs_.emplace_back();
    output.id = row.request;
    output.error = std::move(result.status);
  }
  outputs_.back().finish = ReasonOf(*effect.end);
  live_.erase(live);
}

void EngineLoop::HandOut() {
  std::vector<RequestId> ended;
  for (const RequestOutput& output : outputs_) {
    if (output.finish) ended.push_back(output.id);
  }
  std::vector<GroupStats> groups;
  const auto usage = [](int32_t free, int32_t pages) {
    return 1.0 - static_cast<double>(free) / pages;
  };
  for (int32_t group = 0; group < options_.scheduler.groups; ++group) {
    groups.push_back(
        {.running = scheduler_.running(group),
         .kv_usage = usage(scheduler_.free_pages(group), options_.scheduler.num_pages)});
  }
  {
    const int32_t pages = scheduler_.num_pages();
    std::lock_guard lock(stats_mutex_);
    stats_ = {.groups = std::move(groups),
              .running = scheduler_.running(),
              .waiting = scheduler_.waiting(),
              .kv_usage = usage(scheduler_.free_pages(), pages),
              .total_pages = pages,
              .free_pages = scheduler_.free_pages(),
              .steps = steps_,
              .tokens_of_steps = tokens_of_steps_,
              .preemptions = scheduler_.preemptions(),
              .prompt_tokens = scheduler_.prompt_tokens(),
              .generated_tokens = scheduler_.generated_tokens(),
              .prefix_queries = scheduler_.prefix_queries(),
              .prefix_hits = scheduler_.prefix_hits(),
              .drafts = drafts_};
  }
  inbox_.Forget(ended);
  LogThroughput();
  if (!outputs_.empty()) on_output_(std::exchange(outputs_, {}));
}

void EngineLoop::LogThroughput() {
  const int64_t elapsed_ns = clock_->NowNs() - logged_ns_;
  if (elapsed_ns < kLogEveryNs) return;
  const auto per_second = [elapsed_ns](int64_t n) {
    return static_cast<double>(n) * 1e9 / static_cast<double>(elapsed_ns);
  };
  LOG_INFO(
      "prompt {:.0f} tokens/s, generated {:.0f} tokens/s, {} running, {} waiting, {} of {} "
      "pages free",
      per_second(scheduler_.prompt_tokens() - logged_prompt_tokens_),
      per_second(scheduler_.generated_tokens() - logged_generated_tokens_), scheduler_.running(),
      scheduler_.waiting(), scheduler_.free_pages(), scheduler_.num_pages());
  RestartThroughput();
}

void EngineLoop::RestartThroughput() {
  logged_ns_ = clock_->NowNs();
  logged_prompt_tokens_ = scheduler_.prompt_tokens();
  logged_generated_tokens_ = scheduler_.generated_tokens();
}

}  // namespace fathom
