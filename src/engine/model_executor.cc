#include "engine/model_executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

namespace fathom {
namespace {

int64_t MaxPages(const ModelOptions& options) {
  return (options.max_model_len + kPageTokens - 1) / kPageTokens;
}

Status NanError(int32_t position) {
  return Internal(
      "the model's logits hold NaN after position {}: the checkpoint or its numbers are damaged",
      position);
}

// Sizes of steps that are worth a record each: they grow by a third at most from 16 on.
std::vector<int64_t> StepSizes(int64_t most) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size < most; size = size < 8    ? size * 2
                                             : size < 64 ? size + 8
                                                         : (size + size / 3) / 16 * 16) {
    sizes.push_back(size);
  }
  sizes.push_back(most);
  return sizes;
}

}  // namespace

ModelExecutor::ModelExecutor(Model& model, Device& device, const ModelExecutorOptions& options)
    : model_(model),
      pool_(model.kv_format(), model.config().total_layers(), options.num_pages, device),
      slots_({.slots = options.slots,
              .vocab = model.config().vocab_size,
              .max_pages = MaxPages(model.options())},
             device),
      sampler_({.rows = model.options().max_logit_rows,
                .vocab = model.config().vocab_size,
                .hidden = model.config().hidden_size},
               model.runner().ops(), device),
      inputs_({.rows = model.options().max_rows, .tokens = model.options().max_tokens}, device),
      prompts_(static_cast<size_t>(options.slots)),
      logprobs_(static_cast<size_t>(options.slots), -1),
      max_in_flight_(static_cast<size_t>(options.max_in_flight)),
      steps_(static_cast<size_t>(options.max_in_flight)),
      results_(static_cast<size_t>(options.max_in_flight)) {
  CHECK(options.slots <= sampler_.max_rows(), "one pass must be able to sample every slot");
  if (device.replays()) {
    sizes_ = StepSizes(std::min(model.options().max_rows, model.options().max_tokens));
  }
  thread_ = std::thread([this] { Loop(); });
}

ModelExecutor::~ModelExecutor() {
  steps_.Close();
  thread_.join();
}

void ModelExecutor::Submit(ExecutorStep step) {
  CHECK(steps_.TryPush(std::move(step)), "more steps in flight than the executor was made for");
}

StepResult ModelExecutor::Wait() {
  std::optional<StepResult> result = results_.Pop();
  CHECK(result.has_value());
  return std::move(*result);
}

void ModelExecutor::Loop() {
  Device& device = model_.runner().device();
  device.BindThread();
  WarmUp();
  for (;;) {
    if (!enqueued_.empty() && device.Passed(enqueued_.front().mark)) {
      CHECK(results_.TryPush(Finish(enqueued_.front())));
      enqueued_.pop_front();
      continue;
    }
    // A step that waits is enqueued before the one on the device has ended.
    if (enqueued_.size() < max_in_flight_) {
      std::optional<ExecutorStep> step = enqueued_.empty() ? steps_.Pop() : steps_.TryPop();
      if (step) {
        Enqueue(*step);
        continue;
      }
      if (enqueued_.empty()) return;  // closed
    }
    std::this_thread::sleep_for(std::chrono::microseconds(10));
  }
}

void ModelExecutor::WarmUp() {
  for (const int64_t size : sizes_) {
    const Batch batch = inputs_.Stage({}, slots_.state(), 0, {size, size});
    StageSampler({}, size);
    for (int i = 0; i < 2; ++i) Replay(batch);  // the second time records
  }
  model_.runner().device().Seal();
}

void ModelExecutor::Enqueue(const ExecutorStep& step) {
  Device& device = model_.runner().device();
  const StepPlan& plan = step.plan;
  device.BeginStep(plan.step);
  Enqueued& enqueued = enqueued_.emplace_back();
  enqueued.result = {.step = plan.step, .rows = std::vector<RowResult>(plan.rows.size())};
  EnterSlots(step);
  if (!plan.rows.empty()) {
    std::vector<HostRow> rows;
    bool eager = false;
    const int64_t limit = model_.options().absorbed_row_limit, tokens = plan.num_tokens();
    for (const StepRow& row : plan.rows) {
      rows.push_back({row.slot, row.position, row.num_tokens, row.tokens});
      eager |= row.num_tokens > limit || row.prompt_logprobs;
    }
    const auto size = std::lower_bound(sizes_.begin(), sizes_.end(), tokens);
    SampledRows& sampled = enqueued.rows = RowsToSample(plan);
    if (eager || size == sizes_.end()) {
      EnqueueEagerly(plan, inputs_.Stage(rows, slots_.state(), limit), enqueued);
    } else {
      const Batch batch = inputs_.Stage(rows, slots_.state(), limit, {*size, *size});
      StageSampler(sampled, *size);
      Replay(batch);
    }
    if (!sampled.row.empty()) {
      const int32_t top = *std::max_element(sampled.logprobs.begin(), sampled.logprobs.end());
      if (top >= 0) sampler_.LogProbs({}, top, enqueued.logprobs);
      sampler_.Download(enqueued.drawn);
    }
  }
  enqueued.mark = device.Mark();
}

StepResult ModelExecutor::Finish(Enqueued& step) {
  model_.runner().device().WaitFor(step.mark);
  for (size_t i = 0; i < step.rows.row.size(); ++i) {
    RowResult& row = step.result.rows[step.rows.row[i]];
    const std::optional<TokenId> token = step.drawn.token(i);
    if (!token) {
      row.status = NanError(step.rows.positions[i] - 1);
      continue;
    }
    row.token.id = *token;
    const int32_t wanted = step.rows.logprobs[i];
    if (wanted >= 0) row.token.logprobs = step.logprobs.row(i, wanted);
  }
  for (const PromptPass& pass : step.prompt_passes) {
    RowResult& row = step.result.rows[pass.row];
    for (size_t i = 0; i < pass.logprobs.rows(); ++i) {
      row.prompt_logprobs.push_back(pass.logprobs.row(i, pass.top));
      if (std::isnan(row.prompt_logprobs.back().logprob)) row.status = NanError(pass.last_position);
    }
  }
  return std::move(step.result);
}

void ModelExecutor::EnterSlots(const ExecutorStep& step) {
  for (const SlotOpening& opening : step.openings) {
    slots_.Open(opening.slot, {.params = opening.sampling,
                               .banned = opening.stop_tokens,
                               .min_tokens = opening.min_tokens,
                               .prompt = opening.prompt,
                               .generated = opening.generated});
    const auto slot = static_cast<size_t>(Raw(opening.slot));
    logprobs_[slot] = opening.sampling.logprobs;
    prompts_[slot] = {};
    if (opening.prompt_logprobs >= 0) prompts_[slot] = {opening.prompt, opening.prompt_logprobs};
  }
  for (const StepRow& row : step.plan.rows) {
    if (!row.new_pages.empty()) slots_.SetPages(row.slot, row.first_new_page, row.new_pages);
  }
}

ModelExecutor::SampledRows ModelExecutor::RowsToSample(const StepPlan& plan) const {
  SampledRows sampled;
  sampled.sampled_index.assign(plan.rows.size(), -1);
  int32_t end = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    end += row.num_tokens;
    if (!row.samples) continue;
    sampled.sampled_index[i] = static_cast<int32_t>(sampled.row.size());
    sampled.row.push_back(i);
    sampled.last_token.push_back(end - 1);
    sampled.positions.push_back(row.position + row.num_tokens);
    sampled.slots.push_back(row.slot);
    sampled.logprobs.push_back(logprobs_[static_cast<size_t>(Raw(row.slot))]);
  }
  return sampled;
}

void ModelExecutor::StageSampler(const SampledRows& rows, int64_t padded) {
  sampler_.Stage({.index = rows.last_token,
                  .slots = rows.slots,
                  .positions = rows.positions,
                  .sampled_index = rows.sampled_index,
                  .padded = padded});
}

void ModelExecutor::EnqueueSampling(const Batch& batch, const TensorView& hidden, bool samples) {
  if (samples) {
    model_.Logits(sampler_.Gather(hidden), sampler_.live(), sampler_.logits());
    sampler_.Sample(slots_.state());
  }
  sampler_.Commit(inputs_.row_slot(), inputs_.row_begin(), batch.map.positions, inputs_.live_rows(),
                  slots_.state());
}

void ModelExecutor::Replay(const Batch& batch) {
  model_.runner().device().Replay(static_cast<uint64_t>(batch.tokens), [&] {
    inputs_.Prepare(model_.runner(), batch, slots_.state());
    EnqueueSampling(batch, model_.Forward(batch, pool_), /*samples=*/true);
  });
}

void ModelExecutor::EnqueueEagerly(const StepPlan& plan, const Batch& batch, Enqueued& enqueued) {
  inputs_.Prepare(model_.runner(), batch, slots_.state());
  const TensorView hidden = model_.Forward(batch, pool_);
  EnqueuePromptLogprobs(plan, hidden, enqueued.prompt_passes);
  StageSampler(enqueued.rows, 0);
  EnqueueSampling(batch, hidden, !enqueued.rows.row.empty());
}

void ModelExecutor::EnqueuePromptLogprobs(const StepPlan& plan, const TensorView& hidden,
                                          std::vector<PromptPass>& passes) {
  int32_t begin = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    const int32_t first = begin;
    begin += row.num_tokens;
    if (!row.prompt_logprobs) continue;
    const PromptOfSlot& prompt = prompts_[static_cast<size_t>(Raw(row.slot))];
    const auto known = static_cast<int32_t>(prompt.tokens.size()) - 1 - row.position;
    const int32_t count = std::min(row.num_tokens, known);  // tokens with a successor in the prompt
    const auto step = static_cast<int32_t>(sampler_.max_rows());
    for (int32_t at = 0; at < count; at += step) {
      std::vector<int32_t> index;
      std::vector<TokenId> successors;
      for (int32_t t = at; t < std::min(at + step, count); ++t) {
        index.push_back(first + t);
        successors.push_back(prompt.tokens[static_cast<size_t>(row.position + t + 1)]);
      }
      sampler_.Stage({.index = index});
      model_.Logits(sampler_.Gather(hidden), sampler_.live(), sampler_.logits());
      PromptPass& pass = passes.emplace_back(i, prompt.top, row.position + row.num_tokens - 1);
      sampler_.LogProbs(successors, prompt.top, pass.logprobs);
    }
  }
}

}  // namespace fathom
