#include "engine/step_runner.h"

#include <algorithm>
#include <utility>

namespace fathom {
namespace {

int64_t MaxPages(const ModelOptions& options) {
  return (options.max_model_len + kPageTokens - 1) / kPageTokens;
}

// Logit vectors are apart from slots: there are as many as a step may want, taken in passes.
BatchCapacity InputsOf(const ModelOptions& options) {
  const int64_t most = std::min(options.max_tokens, options.max_rows * (1 + options.max_drafts));
  return {.rows = options.max_rows,
          .tokens = options.max_tokens,
          .logit_vectors = std::max(most, options.max_logit_vectors),
          .pass_vectors = options.max_logit_vectors};
}

SlotsCapacity SlotsOf(const ModelConfig& config, const ModelOptions& options, int64_t slots) {
  return {.slots = slots,
          .vocab = config.vocab_size,
          .max_pages = MaxPages(options),
          .max_drafts = options.max_drafts,
          .max_text = options.ngram || options.mtp ? options.max_model_len : 0};
}

// Those that it has seen, and of which it has not heard yet what they drew.
int64_t StepsInHand(const Shard& shard) {
  return shard.layout.pipeline - shard.stage;
}

SamplerCapacity SamplerOf(const ModelConfig& config, const ModelOptions& options) {
  return {.logit_vectors = InputsOf(options).logit_vectors,
          .pass_vectors = options.max_logit_vectors,
          .vocab = config.vocab_size,
          .hidden = config.hidden_size};
}

}  // namespace

StepRunnerBytes StepRunner::Bytes(const ModelConfig& config, const ModelOptions& options,
                                  int64_t slots, const Ops& ops) {
  return {.slots = Slots::Bytes(SlotsOf(config, options, slots)),
          .logits = Sampler::Bytes(SamplerOf(config, options), ops) +
                    StepInputs::Bytes(InputsOf(options)) *
                        static_cast<size_t>(StepsInHand(options.shard)) +
                    (options.mtp ? MtpProposer::Bytes(config, options, ops) : 0)};
}

StepRunner::StepRunner(Model& model, Device& device, const StepRunnerCapacity& capacity)
    : model_(model),
      device_(device),
      pool_(model.kv_format(), model.cached_layers(), capacity.num_pages, device),
      slots_(SlotsOf(model.config(), model.options(), capacity.slots), device),
      sampler_(SamplerOf(model.config(), model.options()), model.runner().ops(), device) {
  for (int64_t i = 0; i < StepsInHand(model.options().shard); ++i) {
    staged_.emplace_back(InputsOf(model.options()), device);
  }
  if (model.options().mtp) mtp_.emplace(model, pool_, sampler_, device, capacity.slots);
}

void StepRunner::Begin(const StepPlan& plan) {
  device_.BeginStep(plan.step);
  for (const SlotOpening& opening : plan.openings) slots_.Open(opening);
  for (const StepRow& row : plan.rows) {
    if (!row.new_pages.empty()) slots_.SetPages(row.slot, row.first_new_page, row.new_pages);
  }
}

const StagedStep& StepRunner::Stage(const StepPlan& plan, const BatchCapacity& padded) {
  StagedStep& step = staged_[std::exchange(next_place_, (next_place_ + 1) % staged_.size())];
  std::vector<BatchRow> rows;
  for (const StepRow& row : plan.rows) {
    rows.push_back({.slot = row.slot,
                    .form = row.form,
                    .begin = row.begin,
                    .tokens = row.tokens,
                    .drafts = row.drafts,
                    .samples = row.samples});
  }
  const StepShape& shape = plan.shape;
  step.keeps_logits = shape.logprob_vectors > 0;
  step.batch = step.inputs.Stage(rows, slots_.state(), padded, step.keeps_logits);
  step.batch.step_tokens = std::max<int64_t>(step.batch.step_tokens, shape.tokens);
  step.step_rows = shape.rows;
  // A recorded step proposes as many as its size has room for.
  const int64_t of_size = padded.rows > 0 ? padded.tokens / padded.rows - 1 : 0;
  const int64_t drafts = std::clamp<int64_t>(of_size, shape.drafts, model_.options().max_drafts);
  step.draft_tokens = drafts > 0    ? DraftTokens::kAll
                      : shape.known ? DraftTokens::kKnown
                                    : DraftTokens::kNone;
  const bool samples = std::max<int64_t>(shape.logit_vectors, padded.logit_vectors) > 0;
  step.drafts = samples ? static_cast<int32_t>(drafts) : 0;
  return step;
}

void StepRunner::SetMasks(const StepPlan& plan, const StepMasks& masks) {
  auto mask = masks.masks.begin();
  for (const StepRow& row : plan.rows) {
    if (!row.masked) continue;
    CHECK(mask != masks.masks.end(), "step {} has fewer masks than masked rows", plan.step);
    if (!mask->empty()) slots_.SetMasks(row.slot, *mask);
    ++mask;
  }
  CHECK(mask == masks.masks.end(), "step {} has more masks than masked rows", plan.step);
}

TensorView StepRunner::Forward(const StagedStep& step) {
  step.inputs.Prepare(model_.runner(), step.batch, slots_.state());
  return model_.Forward(step.batch, pool_);
}

TensorView StepRunner::ForwardMtp(int index, const StagedStep& step, const TensorView& hidden) {
  step.inputs.Prepare(model_.runner(), step.batch, slots_.state());
  return model_.ForwardMtp(index, step.batch, hidden, pool_);
}

void StepRunner::SampleAndCommit(const StagedStep& step, const TensorView& hidden,
                                 const std::function<void(size_t pass)>& after_pass) {
  const StepInputs& inputs = step.inputs;
  const TokenMap& map = step.batch.map;
  int64_t first = 0;
  for (size_t i = 0; i < inputs.passes().size(); ++i) {
    const LogitPass& pass = inputs.passes()[i];
    if (draws()) {
      ComputeLogits(pass, hidden);
      sampler_.Sample(pass, first, map, slots_.state());
    }
    if (Communicator* stages = model_.options().shard.groups.stages) {
      sampler_.ShareDrawn(pass, first, stages);
    }
    if (after_pass && draws()) after_pass(i);
    first += pass.vectors();
  }
  const ModelOptions& options = model_.options();
  if (options.max_drafts > 0) {
    sampler_.VerifyDrafts(inputs.rows(), slots_.state(), options.synthetic_acceptance);
  }
  sampler_.Commit(inputs.rows(), map.positions, slots_.state());
  if (mtp_) {
    mtp_->Propose({.batch = step.batch,
                   .rows = inputs.rows(),
                   .slots = slots_.state(),
                   .step_rows = step.step_rows,
                   .drafts = step.drafts,
                   .tokens = step.draft_tokens},
                  hidden);
  }
  if (const std::optional<NgramLookup>& ngram = options.ngram) {
    sampler_.ProposeNgram(*ngram, inputs.rows(), map.positions, slots_.state());
  }
}

void StepRunner::CacheKnown(const StagedStep& step) {
  if (!mtp_ || !draws() || step.draft_tokens != DraftTokens::kKnown) return;
  mtp_->CacheKnown(step.batch, model_.hidden(step.batch.tokens));
}

void StepRunner::DownloadDrawn(const StepPlan& plan, const StagedStep& step, Sampler::Drawn& to) {
  sampler_.Download(step.inputs.rows(), static_cast<int64_t>(plan.rows.size()),
                    plan.num_logit_vectors(), to);
}

void StepRunner::DownloadDrafts(SlotDrafts& to) {
  const auto download = [&](const TensorView& from, std::vector<int32_t>& ints) {
    ints.resize(static_cast<size_t>(from.elements()));
    device_.Download(std::as_writable_bytes(std::span(ints)), from);
  };
  download(slots_.state().drafts, to.drafts);
  download(slots_.state().num_drafts, to.counts);
}

std::span<const int32_t> StepRunner::SlotDrafts::Of(SlotId slot) const {
  const auto at = static_cast<size_t>(Raw(slot)), most = drafts.size() / counts.size();
  return std::span(drafts).subspan(at * most, static_cast<size_t>(counts[at]));
}

// Of the vectors of a pass that the host may have to read: those beyond are padding.
void StepRunner::LogProbsOfDrawn(const StepPlan& plan, const StagedStep& step, size_t pass,
                                 Sampler::LogprobWidths widths, Sampler::PassLogprobs& to) {
  CHECK(step.keeps_logits, "step {} keeps no logits", plan.step);
  const LogitPass& whole = step.inputs.passes()[pass];
  const int64_t first = static_cast<int64_t>(pass) * sampler_.pass_vectors();
  const int64_t vectors = std::min(whole.vectors(), plan.num_logit_vectors() - first);
  sampler_.LogProbsOfDrawn({.index = whole.index.Slice(0, 0, vectors), .live = whole.live}, first,
                           widths, step.batch.map.slots, slots_.state(), to);
}

TensorView StepRunner::Logits(const TensorView& hidden, std::span<const int32_t> index) {
  return ComputeLogits(sampler_.Stage(index), hidden);
}

void StepRunner::LogProbs(const TensorView& hidden, std::span<const int32_t> index,
                          std::span<const TokenId> tokens, int32_t top, Sampler::PassLogprobs& to) {
  const LogitPass pass = sampler_.Stage(index);
  ComputeLogits(pass, hidden);
  sampler_.LogProbs(pass, tokens, top, to);
}

TensorView StepRunner::ComputeLogits(const LogitPass& pass, const TensorView& hidden) {
  const TensorView logits = sampler_.logits(pass);
  model_.Logits(sampler_.Gather(pass, hidden), pass.live, logits);
  return logits;
}

}  // namespace fathom
