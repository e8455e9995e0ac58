#include "engine/model_executor.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fathom {
namespace {

int64_t MaxPages(const ModelOptions& options) {
  return (options.max_model_len + kPageTokens - 1) / kPageTokens;
}

Status NanError(const StepRow& row) {
  return Internal(
      "the model's logits hold NaN after position {}: the checkpoint or its numbers are damaged",
      row.position + row.num_tokens - 1);
}

TokenLogprobs ToMessage(RowLogprobs row, int32_t top) {
  row.top.resize(std::min(row.top.size(), static_cast<size_t>(top)));
  return {row.logprob, std::move(row.top)};
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
      steps_(static_cast<size_t>(options.max_in_flight)),
      results_(static_cast<size_t>(options.max_in_flight)) {
  CHECK(options.slots <= sampler_.max_rows(), "one pass must be able to sample every slot");
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
  model_.runner().device().BindThread();
  while (std::optional<ExecutorStep> step = steps_.Pop()) {
    CHECK(results_.TryPush(Run(*step)));
  }
}

StepResult ModelExecutor::Run(const ExecutorStep& step) {
  StepResult result{.step = step.plan.step, .rows = std::vector<RowResult>(step.plan.rows.size())};
  EnterSlots(step);
  if (step.plan.rows.empty()) return result;

  std::vector<HostRow> rows;
  for (const StepRow& row : step.plan.rows) {
    rows.push_back({row.slot, row.position, row.num_tokens, row.tokens});
  }
  const Batch batch =
      inputs_.Build(model_.runner(), rows, slots_.state(), model_.options().absorbed_row_limit);
  const TensorView hidden = model_.Forward(batch, pool_);
  PromptLogprobs(step.plan, hidden, result);
  SampleRows(step.plan, batch, hidden, result);
  return result;
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

void ModelExecutor::SampleRows(const StepPlan& plan, const Batch& batch, const TensorView& hidden,
                               StepResult& result) {
  std::vector<int32_t> last_token, positions, sampled_index(plan.rows.size(), -1);
  std::vector<SlotId> slots;
  std::vector<size_t> row_of;
  int32_t top = -1, end = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    end += row.num_tokens;
    if (!row.samples) continue;
    sampled_index[i] = static_cast<int32_t>(slots.size());
    last_token.push_back(end - 1);
    positions.push_back(row.position + row.num_tokens);
    slots.push_back(row.slot);
    row_of.push_back(i);
    top = std::max(top, logprobs_[static_cast<size_t>(Raw(row.slot))]);
  }

  const TensorView rows = sampler_.GatherHidden(hidden, last_token);
  if (!slots.empty()) {
    model_.Logits(rows, sampler_.live(), sampler_.logits());
    sampler_.Sample(slots, positions, slots_.state());
  }
  sampler_.Commit(inputs_.row_slot(), inputs_.row_begin(), batch.map.positions, inputs_.live_rows(),
                  sampled_index, slots_.state());
  if (slots.empty()) return;

  std::vector<RowLogprobs> logprobs;
  if (top >= 0) logprobs = sampler_.LogProbs({}, top);
  const std::vector<std::optional<TokenId>> tokens = sampler_.Tokens();
  for (size_t i = 0; i < tokens.size(); ++i) {
    RowResult& row = result.rows[row_of[i]];
    if (!tokens[i]) {
      row.status = NanError(plan.rows[row_of[i]]);
      continue;
    }
    row.token.id = *tokens[i];
    const int32_t wanted = logprobs_[static_cast<size_t>(Raw(slots[i]))];
    if (wanted >= 0) row.token.logprobs = ToMessage(std::move(logprobs[i]), wanted);
  }
}

void ModelExecutor::PromptLogprobs(const StepPlan& plan, const TensorView& hidden,
                                   StepResult& result) {
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
      const TensorView rows = sampler_.GatherHidden(hidden, index);
      model_.Logits(rows, sampler_.live(), sampler_.logits());
      for (RowLogprobs& logprobs : sampler_.LogProbs(successors, prompt.top)) {
        if (std::isnan(logprobs.logprob)) result.rows[i].status = NanError(row);
        result.rows[i].prompt_logprobs.push_back(ToMessage(std::move(logprobs), prompt.top));
      }
    }
  }
}

}  // namespace fathom
