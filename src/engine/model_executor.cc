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

Status NanError() {
  return Internal("the model's logits hold NaN: the checkpoint or its numbers are damaged");
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

// Logit rows are apart from slots: there are as many as a step may want, taken in passes.
BatchCapacity InputsOf(const ModelOptions& options) {
  return {.rows = options.max_rows,
          .tokens = options.max_tokens,
          .logit_rows = std::max(options.max_rows, options.max_logit_rows),
          .pass_rows = options.max_logit_rows};
}

SlotsCapacity SlotsOf(const ModelConfig& config, const ModelOptions& options, int64_t slots) {
  return {.slots = slots, .vocab = config.vocab_size, .max_pages = MaxPages(options)};
}

SamplerCapacity SamplerOf(const ModelConfig& config, const ModelOptions& options) {
  return {.logit_rows = InputsOf(options).logit_rows,
          .pass_rows = options.max_logit_rows,
          .vocab = config.vocab_size,
          .hidden = config.hidden_size};
}

}  // namespace

ExecutorBytes ModelExecutor::Bytes(const ModelConfig& config, const ModelOptions& options,
                                   int64_t slots, const Ops& ops) {
  return {.slots = Slots::Bytes(SlotsOf(config, options, slots)),
          .logits = Sampler::Bytes(SamplerOf(config, options), ops) +
                    StepInputs::Bytes(InputsOf(options))};
}

ModelExecutor::ModelExecutor(Model& model, Device& device, const ModelExecutorOptions& options)
    : model_(model),
      pool_(model.kv_format(), model.config().total_layers(), options.num_pages, device),
      slots_(SlotsOf(model.config(), model.options(), options.slots), device),
      sampler_(SamplerOf(model.config(), model.options()), model.runner().ops(), device),
      inputs_(InputsOf(model.options()), device),
      params_(static_cast<size_t>(options.slots)),
      max_in_flight_(static_cast<size_t>(options.max_in_flight)),
      steps_(static_cast<size_t>(options.max_in_flight)),
      results_(static_cast<size_t>(options.max_in_flight)) {
  if (device.records()) {
    for (const int64_t size :
         StepSizes(std::min(model.options().max_rows, model.options().max_tokens))) {
      sizes_.push_back({.rows = size, .tokens = size, .logit_rows = size});
    }
  }
  thread_ = std::thread([this] { Loop(); });
  warm_.wait();
}

ModelExecutor::~ModelExecutor() {
  steps_.Close();
  thread_.join();
}

void ModelExecutor::Submit(StepPlan plan) {
  CHECK(steps_.TryPush(std::move(plan)), "more steps in flight than the executor was made for");
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
  warm_.count_down();
  for (;;) {
    if (!enqueued_.empty() && device.Passed(enqueued_.front().mark)) {
      CHECK(results_.TryPush(Finish(enqueued_.front())));
      enqueued_.pop_front();
      continue;
    }
    // A step that waits is enqueued before the one on the device has ended.
    if (enqueued_.size() < max_in_flight_) {
      std::optional<StepPlan> step = enqueued_.empty() ? steps_.Pop() : steps_.TryPop();
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
  Device& device = model_.runner().device();
  const auto start = std::chrono::steady_clock::now();
  const int64_t free = device.FreeBytes();
  for (const BatchCapacity& size : sizes_) {
    const Batch batch = inputs_.Stage({}, slots_.state(), size);
    for (int i = 0; i < 2; ++i) EnqueueRecorded(size, batch);  // the second time records
  }
  device.WaitFor(device.Mark());
  device.Seal();
  if (!device.status().ok()) return;  // as the first step will tell
  recorded_ = {
      .steps = static_cast<int64_t>(sizes_.size()),
      .bytes = std::max<int64_t>(free - device.FreeBytes(), 0),
      .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

void ModelExecutor::Enqueue(const StepPlan& plan) {
  Device& device = model_.runner().device();
  device.BeginStep(plan.step);
  Enqueued& step = enqueued_.emplace_back();
  step.result = {.step = plan.step, .rows = std::vector<RowResult>(plan.rows.size())};
  if (device.status().ok()) {  // a device that failed is asked for nothing more
    OpenSlots(plan);
    if (!plan.rows.empty()) EnqueueRows(plan, step);
  }
  step.mark = device.Mark();
}

void ModelExecutor::EnqueueRows(const StepPlan& plan, Enqueued& step) {
  step.rows = RowsOf(plan);
  std::vector<BatchRow> rows;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    rows.push_back({.slot = row.slot,
                    .form = row.form,
                    .begin = row.begin,
                    .tokens = row.tokens,
                    .drafts = row.drafts,
                    .samples = row.samples});
    step.logit_rows += rows.back().logit_rows();
    if (row.samples) step.top_logprobs = std::max(step.top_logprobs, step.rows[i].logprobs);
  }
  if (const BatchCapacity* size = RecordedSize(plan, step)) {
    const Batch batch = inputs_.Stage(rows, slots_.state(), *size);
    EnqueueRecorded(*size, batch);
    if (step.top_logprobs >= 0) EnqueueLogprobs(0, step);
  } else {
    EnqueueEagerly(plan, inputs_.Stage(rows, slots_.state()), step);
  }
  if (step.logit_rows > 0) {
    sampler_.Download(inputs_.rows(), static_cast<int64_t>(rows.size()), step.logit_rows,
                      step.drawn);
  }
}

StepResult ModelExecutor::Finish(Enqueued& step) {
  Device& device = model_.runner().device();
  device.WaitFor(step.mark);
  step.result.status = device.status();
  if (!step.result.status.ok()) return std::move(step.result);  // nothing was downloaded
  for (size_t i = 0; i < step.rows.size(); ++i) {
    if (step.rows[i].samples) TakeDrawn(step, i, step.result.rows[i]);
  }
  for (const PromptPass& pass : step.prompt_passes) {
    RowResult& row = step.result.rows[pass.row];
    for (size_t i = 0; i < pass.logprobs.rows(); ++i) {
      row.prompt_logprobs.push_back(pass.logprobs.row(i, pass.top));
      if (std::isnan(row.prompt_logprobs.back().logprob)) row.status = NanError();
    }
  }
  return std::move(step.result);
}

// The tokens that a row sampled and that stand: one for each of a decode's tokens that stand, none
// if it had no live token; else one.
void ModelExecutor::TakeDrawn(const Enqueued& step, size_t row, RowResult& result) const {
  const AwaitedRow& awaited = step.rows[row];
  const auto first = static_cast<size_t>(step.drawn.logit_begin[row]);
  const auto count = static_cast<size_t>(awaited.is_decode ? step.drawn.count[row] : 1);
  const auto pass_rows = static_cast<size_t>(sampler_.pass_rows());
  for (size_t at = first; at < first + count; ++at) {
    const std::optional<TokenId> token = step.drawn.token(at);
    if (!token) {
      result.status = NanError();
      return;
    }
    GeneratedToken& generated = result.tokens.emplace_back(*token);
    if (awaited.logprobs >= 0) {
      generated.logprobs = step.logprobs[at / pass_rows].row(at % pass_rows, awaited.logprobs);
    }
  }
}

void ModelExecutor::OpenSlots(const StepPlan& plan) {
  for (const SlotOpening& opening : plan.openings) {
    slots_.Open(opening);
    params_[static_cast<size_t>(Raw(opening.slot))] = opening.params;
  }
  for (const StepRow& row : plan.rows) {
    if (!row.new_pages.empty()) slots_.SetPages(row.slot, row.first_new_page, row.new_pages);
  }
}

std::vector<ModelExecutor::AwaitedRow> ModelExecutor::RowsOf(const StepPlan& plan) const {
  std::vector<AwaitedRow> rows;
  for (const StepRow& row : plan.rows) {
    rows.push_back({.samples = row.samples,
                    .is_decode = row.is_decode(),
                    .logprobs = ParamsOf(row.slot).sampling.logprobs});
  }
  return rows;
}

const BatchCapacity* ModelExecutor::RecordedSize(const StepPlan& plan, const Enqueued& step) const {
  for (const StepRow& row : plan.rows) {
    if (row.form == AttentionForm::kExpanded || row.prompt_logprobs) return nullptr;
  }
  // Logits are read after the replay, which leaves those of one pass.
  if (step.top_logprobs >= 0 && step.logit_rows > sampler_.pass_rows()) return nullptr;
  const auto rows = static_cast<int64_t>(plan.rows.size());
  const int64_t tokens = plan.num_tokens();
  const auto size = std::find_if(sizes_.begin(), sizes_.end(), [&](const BatchCapacity& s) {
    return s.rows >= rows && s.tokens >= tokens && s.logit_rows >= step.logit_rows;
  });
  return size == sizes_.end() ? nullptr : &*size;
}

void ModelExecutor::EnqueueRecorded(const BatchCapacity& size, const Batch& batch) {
  const uint64_t key = static_cast<uint64_t>(size.rows) << 32 | static_cast<uint64_t>(size.tokens);
  model_.runner().device().RecordOrReplay(key, [&] {
    inputs_.Prepare(model_.runner(), batch, slots_.state());
    EnqueueSampling(batch, model_.Forward(batch, pool_), nullptr);
  });
}

void ModelExecutor::EnqueueEagerly(const StepPlan& plan, const Batch& batch, Enqueued& step) {
  inputs_.Prepare(model_.runner(), batch, slots_.state());
  const TensorView hidden = model_.Forward(batch, pool_);
  EnqueuePromptLogprobs(plan, hidden, step.prompt_passes);
  EnqueueSampling(batch, hidden, &step);
}

// With the log-probabilities that `step` wants, if it is given.
void ModelExecutor::EnqueueSampling(const Batch& batch, const TensorView& hidden, Enqueued* step) {
  int64_t first = 0;
  for (size_t i = 0; i < inputs_.passes().size(); ++i) {
    const LogitPass& pass = inputs_.passes()[i];
    model_.Logits(sampler_.Gather(pass, hidden), pass.live, sampler_.logits(pass));
    sampler_.Sample(pass, first, batch.map, slots_.state());
    if (step != nullptr && step->top_logprobs >= 0) EnqueueLogprobs(i, *step);
    first += pass.rows();
  }
  sampler_.Commit(inputs_.rows(), batch.map.positions, slots_.state());
}

// Of the rows of a pass that the host may have to read.
void ModelExecutor::EnqueueLogprobs(size_t pass, Enqueued& step) {
  const LogitPass& whole = inputs_.passes()[pass];
  const int64_t first = static_cast<int64_t>(pass) * sampler_.pass_rows();
  const int64_t rows = std::min(whole.rows(), step.logit_rows - first);
  step.logprobs.resize(inputs_.passes().size());
  sampler_.LogProbsOfDrawn({.index = whole.index.Slice(0, 0, rows), .live = whole.live}, first,
                           step.top_logprobs, step.logprobs[pass]);
}

void ModelExecutor::EnqueuePromptLogprobs(const StepPlan& plan, const TensorView& hidden,
                                          std::vector<PromptPass>& passes) {
  int32_t begin = 0;  // of the row in the batch: rows of known tokens are live, and come first
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    const int32_t first = begin;
    begin += row.num_tokens();
    if (!row.prompt_logprobs) continue;
    const RequestParams& params = ParamsOf(row.slot);
    const auto known = static_cast<int32_t>(params.prompt.size()) - 1 - row.begin;
    const int32_t count = std::min(row.num_tokens(), known);  // with a successor in the prompt
    const auto step = static_cast<int32_t>(sampler_.pass_rows());
    for (int32_t at = 0; at < count; at += step) {
      std::vector<int32_t> index;
      std::vector<TokenId> successors;
      for (int32_t t = at; t < std::min(at + step, count); ++t) {
        index.push_back(first + t);
        successors.push_back(params.prompt[static_cast<size_t>(row.begin + t + 1)]);
      }
      const LogitPass pass = sampler_.Stage(index);
      model_.Logits(sampler_.Gather(pass, hidden), pass.live, sampler_.logits(pass));
      PromptPass& prompt = passes.emplace_back(i, params.prompt_logprobs);
      sampler_.LogProbs(pass, successors, prompt.top, prompt.logprobs);
    }
  }
}

}  // namespace fathom
