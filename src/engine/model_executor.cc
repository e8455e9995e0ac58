#include "engine/model_executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/printable.h"
#include "engine/timed_decodes.h"

namespace fathom {
namespace {

constexpr std::chrono::microseconds kLook{10};       // between looks at what a device has done
constexpr std::chrono::milliseconds kPatience{100};  // with a result, between looks at the device

Status NanError() {
  return Internal("the model's logits hold NaN: the checkpoint or its numbers are damaged");
}

RankStats StatsOf(const Model& model, const ModelExecutorOptions& options, const Ops& ops) {
  const ModelOptions& of_model = model.options();
  const Shard& shard = of_model.shard;
  const StepRunnerBytes runner = StepRunner::Bytes(model.config(), of_model, options.slots, ops);
  const int64_t cache = model.kv_format().page_bytes() * model.cached_layers() * options.num_pages;
  return {.rank = shard.stage * shard.layout.stage_ranks() + shard.rank_in_stage(),
          .stage = shard.stage,
          .group = shard.data_rank,
          .memory = {model.weight_bytes(), static_cast<size_t>(cache), model.activation_bytes(),
                     model.workspace_bytes(), model.exchange_bytes(), runner.slots, runner.logits}};
}

}  // namespace

ModelExecutor::ModelExecutor(Model& model, Device& device, const ModelExecutorOptions& options)
    : device_(device),
      rank_(StatsOf(model, options, model.runner().ops())),
      runner_(model, device, {.num_pages = options.num_pages, .slots = options.slots}),
      params_(static_cast<size_t>(options.slots)),
      stage_(static_cast<size_t>(model.options().shard.stage)),
      stages_(static_cast<size_t>(model.options().shard.layout.pipeline)),
      max_in_flight_(static_cast<size_t>(options.max_in_flight)),
      step_timeout_(options.step_timeout_s),
      on_failure_(options.on_failure),
      timed_decodes_(options.time_steps ? MostTimedDecodes(runner_, options.num_pages) : 0),
      steps_(max_in_flight_ * stages_),  // others follow each to move it on
      masks_(static_cast<size_t>(options.max_in_flight)),
      results_(static_cast<size_t>(options.max_in_flight)) {
  if (device.records()) sizes_ = RecordedSizes(model.options());
  StepWatch watch(device, rank_.rank, options.step_timeout_s, on_failure_);
  const std::future<void> warm = warm_.get_future();
  thread_ = std::thread([this, &watch, meet = options.meet] {
    device_.BindThread();
    WarmUp(meet, watch);
    warm_.set_value();
    Loop();
    ended_.set_value();
  });
  watch.Until(warm);
}

ModelExecutor::~ModelExecutor() {
  steps_.Close();
  masks_.Close();
  const Status status = device_.status();
  if (!status.ok() && ended_.get_future().wait_for(kLeave) != std::future_status::ready) {
    LeaveRank(status, rank_.rank);
  }
  thread_.join();
}

void ModelExecutor::Submit(StepPlans plans) {
  CHECK(plans.groups.size() == 1, "{} groups: one device serves one", plans.groups.size());
  CHECK(steps_.TryPush(std::move(plans.groups.front())),
        "more steps in flight than the executor was made for");
}

void ModelExecutor::SubmitMasks(std::vector<StepMasks> groups) {
  CHECK(groups.size() == 1, "masks of {} groups: one device serves one", groups.size());
  if (!runner_.draws()) return;
  CHECK(masks_.TryPush(std::move(groups.front())), "masks of more steps than are in flight");
}

StepResult ModelExecutor::Wait() {
  // Of a rank that is stuck in a step nothing comes, though another has given it up.
  for (bool failed = false;; failed = !device_.status().ok()) {
    if (std::optional<StepResult> result = results_.PopWithin(kPatience)) {
      return std::move(*result);
    }
    if (failed) return {.step = 0, .rows = {}, .status = device_.status()};
  }
}

std::vector<RankStats> ModelExecutor::Ranks() const {
  RankStats now = rank_;
  now.steps = steps_ended_;
  now.busy_ns = busy_ns_;
  return {std::move(now)};
}

void ModelExecutor::CountBusy() {
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds busy = now - std::exchange(busy_since_, now);
  busy_ns_ += static_cast<uint64_t>(busy.count());
}

void ModelExecutor::Loop() {
  busy_since_ = std::chrono::steady_clock::now();
  for (;;) {
    if (!enqueued_.empty() && device_.Passed(enqueued_.front().mark)) {
      FinishOldest();
      continue;
    }
    if (!enqueued_.empty()) Watch(enqueued_.front());
    // A step that waits is enqueued before the one on the device has ended.
    if (enqueued_.size() < max_in_flight_) {
      std::optional<StepPlan> step = steps_.TryPop();
      if (!step && enqueued_.empty()) {
        CountBusy();
        step = steps_.Pop();
        busy_since_ = std::chrono::steady_clock::now();
      }
      if (step) {
        Enqueue(*std::move(step));
        continue;
      }
      if (enqueued_.empty()) return;  // closed
    }
    std::this_thread::sleep_for(kLook);
  }
}

void ModelExecutor::WarmUp(const std::function<void()>& meet, StepWatch& watch) {
  const auto all_here = [&] {
    device_.WaitFor(device_.Mark());
    if (const Status failed = device_.status(); !failed.ok() && on_failure_) on_failure_(failed);
    watch.End();  // whoever does not come is watched itself
    if (meet) meet();
  };
  watch.Begin("laying out memory");
  all_here();
  const double start = SecondsNow();
  const int64_t free = device_.status().ok() ? device_.FreeBytes() : 0;
  for (const BatchCapacity& size : sizes_) {
    // The second time in each place records; the first stage has the most.
    for (size_t i = 0; i < 2 * stages_; ++i) {
      watch.Begin("recording a " + StepText({}, size.rows, size.tokens));
      if (device_.status().ok()) RunRecorded({}, size);
      all_here();
    }
  }
  recorded_.seconds = SecondsNow() - start;
  if (timed_decodes_ > 0 && !sizes_.empty()) {
    const auto replay = [&](const StepPlan& plan) {
      const BatchCapacity* const size = RecordedSize(plan.shape);
      if (size == nullptr) return false;
      watch.Begin("timing a " + StepText({}, size->rows, size->tokens));
      if (device_.status().ok()) RunRecorded(plan, *size);
      return true;
    };
    recorded_.times = TimeDecodes(runner_, device_, timed_decodes_, replay, all_here);
  }
  recorded_.timing_seconds = SecondsNow() - start - recorded_.seconds;
  all_here();
  device_.Seal();
  if (!device_.status().ok()) {  // as the first step will tell
    recorded_ = {};
    return;
  }
  recorded_.steps = static_cast<int64_t>(sizes_.size());
  recorded_.bytes = std::max<int64_t>(free - device_.FreeBytes(), 0);
}

void ModelExecutor::RunRecorded(const StepPlan& plan, const BatchCapacity& size) {
  Passing passing{.size = &size, .staged = &runner_.Stage(plan, size)};
  ForwardRecorded(passing);
  runner_.HandOn(*passing.staged);
  SampleRecorded(passing);
}

void ModelExecutor::Enqueue(StepPlan plan) {
  passing_.push_back({.plan = std::move(plan)});
  Passing* const now = passing_.size() > stage_ ? &passing_[passing_.size() - 1 - stage_] : nullptr;
  if (now != nullptr) EnqueueForward(*now);
  // Before it is handed on: the stage after this one takes it once it has told what is drawn.
  const bool ends = passing_.size() == stages_;
  if (ends) EnqueueSampling(passing_.front());
  if (now != nullptr && now->staged != nullptr && device_.status().ok()) {
    runner_.HandOn(*now->staged);
  }
  if (ends) passing_.pop_front();
}

void ModelExecutor::FinishOldest() {
  while (!device_.Passed(enqueued_.front().mark)) {
    Watch(enqueued_.front());
    std::this_thread::sleep_for(kLook);
  }
  CountBusy();
  ++steps_ended_;
  CHECK(results_.TryPush(Finish(enqueued_.front())));
  enqueued_.pop_front();
}

void ModelExecutor::AwaitMasks(const StepPlan& plan) {
  if (!runner_.draws()) return;
  if (std::ranges::none_of(plan.rows, [](const StepRow& row) { return row.masked; })) return;
  while (enqueued_.size() > 1) FinishOldest();
  if (!device_.status().ok()) return;  // whoever makes masks has heard so, and makes none
  const std::optional<StepMasks> masks = masks_.Pop();
  if (!masks) return;  // closed: nobody waits for the step
  CHECK(masks->step == plan.step, "masks of step {} for step {}", masks->step, plan.step);
  runner_.SetMasks(plan, *masks);
}

void ModelExecutor::Watch(const Enqueued& step) {
  if (std::chrono::steady_clock::now() - step.since < step_timeout_) return;
  const auto rows = static_cast<int64_t>(step.rows.size());
  device_.Abandon(
      HasNotEnded(StepText(step.result.step, rows, step.tokens), step_timeout_.count()));
}

void ModelExecutor::EnqueueForward(Passing& passing) {
  const StepPlan& plan = passing.plan;
  Enqueued& step = passing.step;
  step.result = {.step = plan.step, .rows = std::vector<RowResult>(plan.rows.size())};
  step.tokens = plan.num_tokens();
  // Whatever group's rows; and a device that failed is asked for nothing more.
  if (plan.shape.rows == 0 || !device_.status().ok()) return;
  runner_.Begin(plan);
  for (const SlotOpening& opening : plan.openings) {
    params_[static_cast<size_t>(Raw(opening.slot))] = opening.params;
  }
  for (const StepRow& row : plan.rows) {
    const bool samples = row.samples && runner_.draws();
    step.rows.push_back({.samples = samples,
                         .is_decode = row.is_decode(),
                         .masked = row.masked,
                         .slot = row.slot,
                         .params = ParamsOf(row.slot)});
    const SamplingParams& asked = step.rows.back().params->sampling;
    if (!samples || asked.logprobs < 0) continue;
    if (!step.logprob_widths) step.logprob_widths.emplace();
    auto& [top, named] = *step.logprob_widths;
    if (asked.logprob_token_ids.empty()) top = std::max(top, asked.logprobs);
    named = std::max(named, static_cast<int32_t>(asked.logprob_token_ids.size()));
  }
  passing.size = RecordedSize(plan.shape);
  if (passing.size != nullptr) {
    passing.staged = &runner_.Stage(plan, *passing.size);
    ForwardRecorded(passing);
    return;
  }
  // A group without rows takes part in what ranks exchange, and no op is without tokens.
  const BatchCapacity idle = {.rows = 1, .tokens = 1};
  passing.staged = &runner_.Stage(plan, plan.rows.empty() ? idle : BatchCapacity());
  passing.hidden = runner_.Forward(*passing.staged);
  if (runner_.draws()) EnqueuePromptLogprobs(plan, passing.hidden, step.prompt_passes);
}

void ModelExecutor::EnqueueSampling(Passing& passing) {
  const StepPlan& plan = passing.plan;
  if (plan.shape.rows == 0) return;  // nobody waits for it
  Enqueued& step = enqueued_.emplace_back(std::move(passing.step));
  const auto log_probs = [&](size_t pass) {
    if (!step.logprob_widths) return;
    runner_.LogProbsOfDrawn(plan, *passing.staged, pass, *step.logprob_widths,
                            step.logprobs.emplace_back());
  };
  if (passing.staged != nullptr) AwaitMasks(plan);
  if (passing.staged != nullptr && device_.status().ok()) {
    if (passing.size != nullptr) {
      SampleRecorded(passing);
      log_probs(0);
    } else {
      runner_.SampleAndCommit(*passing.staged, passing.hidden, log_probs);
    }
    runner_.CacheKnown(*passing.staged);
    if (plan.num_logit_vectors() > 0 && runner_.draws()) {
      runner_.DownloadDrawn(plan, *passing.staged, step.drawn);
      if (std::ranges::any_of(plan.rows, &StepRow::masked)) runner_.DownloadDrafts(step.proposed);
    }
  }
  step.mark = device_.Mark();
  step.since = std::chrono::steady_clock::now();
}

StepResult ModelExecutor::Finish(Enqueued& step) {
  device_.WaitFor(step.mark);
  step.result.status = device_.status();
  if (!step.result.status.ok()) {  // nothing was downloaded
    if (on_failure_) on_failure_(step.result.status);
    return std::move(step.result);
  }
  for (size_t i = 0; i < step.rows.size(); ++i) {
    if (step.rows[i].samples) TakeDrawn(step, i, step.result.rows[i]);
  }
  for (const PromptPass& pass : step.prompt_passes) {
    RowResult& row = step.result.rows[pass.row];
    for (size_t i = 0; i < pass.logprobs.vectors(); ++i) {
      row.prompt_logprobs.push_back(pass.logprobs.vector(i, pass.top));
      if (std::isnan(row.prompt_logprobs.back().logprob)) row.status = NanError();
    }
  }
  return std::move(step.result);
}

// The tokens that a row sampled and that stand: one for each of a decode's tokens that stand, none
// if it had no live token; else one.
void ModelExecutor::TakeDrawn(const Enqueued& step, size_t row, RowResult& result) const {
  const AwaitedRow& awaited = step.rows[row];
  if (awaited.masked) {
    for (const int32_t draft : step.proposed.Of(awaited.slot)) {
      result.proposed.push_back(TokenId{draft});
    }
  }
  const auto first = static_cast<size_t>(step.drawn.logit_begin[row]);
  const auto count = static_cast<size_t>(awaited.is_decode ? step.drawn.count[row] : 1);
  const auto pass_vectors = static_cast<size_t>(runner_.pass_vectors());
  if (awaited.is_decode)
    result.drafts = std::max(0, step.drawn.logit_begin[row + 1] - step.drawn.logit_begin[row] - 1);
  for (size_t at = first; at < first + count; ++at) {
    const std::optional<TokenId> token = step.drawn.token(at);
    if (!token) {
      result.status = NanError();
      return;
    }
    GeneratedToken& generated = result.tokens.emplace_back(*token);
    const SamplingParams& asked = awaited.params->sampling;
    if (asked.logprobs < 0) continue;
    const Sampler::PassLogprobs& pass = step.logprobs[at / pass_vectors];
    generated.logprobs = asked.logprob_token_ids.empty()
                             ? pass.vector(at % pass_vectors, asked.logprobs)
                             : pass.vector(at % pass_vectors, asked.logprob_token_ids);
  }
}

const BatchCapacity* ModelExecutor::RecordedSize(const StepShape& shape) const {
  if (shape.eager) return nullptr;
  // Logits are read after the replay, which leaves those of one pass.
  if (shape.logprob_vectors > runner_.pass_vectors()) return nullptr;
  const auto size = std::find_if(sizes_.begin(), sizes_.end(), [&](const BatchCapacity& s) {
    return s.rows >= shape.rows && s.tokens >= shape.tokens &&
           s.logit_vectors >= shape.logit_vectors && s.tokens >= s.rows * (1 + shape.drafts);
  });
  return size == sizes_.end() ? nullptr : &*size;
}

uint64_t ModelExecutor::KeyOf(const Passing& passing) const {
  return static_cast<uint64_t>(runner_.PlaceOf(*passing.staged)) << 48 |
         static_cast<uint64_t>(passing.size->rows) << 24 |
         static_cast<uint64_t>(passing.size->tokens);
}

void ModelExecutor::ForwardRecorded(Passing& passing) {
  device_.RecordOrReplay(KeyOf(passing),
                         [&] { passing.hidden = runner_.Forward(*passing.staged); });
}

void ModelExecutor::SampleRecorded(const Passing& passing) {
  constexpr uint64_t kSampling = uint64_t{1} << 63;
  device_.RecordOrReplay(KeyOf(passing) | kSampling,
                         [&] { runner_.SampleAndCommit(*passing.staged, passing.hidden); });
}

void ModelExecutor::EnqueuePromptLogprobs(const StepPlan& plan, const TensorView& hidden,
                                          std::vector<PromptPass>& passes) {
  int32_t begin = 0;  // of the row in the batch: rows of known tokens are live, and come first
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    const int32_t first = begin;
    begin += row.num_tokens();
    if (!row.prompt_logprobs) continue;
    const RequestParams& params = *ParamsOf(row.slot);
    const auto known = static_cast<int32_t>(params.prompt.size()) - 1 - row.begin;
    const int32_t count = std::min(row.num_tokens(), known);  // with a successor in the prompt
    const auto step = static_cast<int32_t>(runner_.pass_vectors());
    for (int32_t at = 0; at < count; at += step) {
      std::vector<int32_t> index;
      std::vector<TokenId> successors;
      for (int32_t t = at; t < std::min(at + step, count); ++t) {
        index.push_back(first + t);
        successors.push_back(params.prompt[static_cast<size_t>(row.begin + t + 1)]);
      }
      PromptPass& prompt = passes.emplace_back(i, params.prompt_logprobs);
      runner_.LogProbs(hidden, index, successors, prompt.top, prompt.logprobs);
    }
  }
}

}  // namespace fathom
