#include "engine/mtp_proposer.h"

#include <algorithm>
#include <span>

namespace fathom {

size_t MtpProposer::Tensors::LayOut(const ModelConfig& config, const ModelOptions& options,
                                    const Ops& ops, Arena arena) {
  const int64_t rows = options.max_rows, pass = options.max_logit_vectors;
  next_ids = arena.Allocate(DType::kI32, {options.max_tokens});
  for (TensorView* view : {&draft_slot, &draft_index, &likeliest, &positions}) {
    *view = arena.Allocate(DType::kI32, {rows});
  }
  live_drafts = arena.Allocate(DType::kI32, {1});
  pass_live = arena.Allocate(DType::kI32, {(rows + pass - 1) / pass});
  all_slots = arena.Allocate(DType::kI32, {1});
  hidden = arena.Allocate(ops.activation, {rows, config.hidden_size});
  return arena.used();
}

size_t MtpProposer::Bytes(const ModelConfig& config, const ModelOptions& options, const Ops& ops) {
  return Tensors().LayOut(config, options, ops, Arena::Measuring());
}

MtpProposer::MtpProposer(Model& model, const KvPool& pool, Sampler& sampler, Device& device,
                         int64_t slots)
    : model_(model), pool_(pool), sampler_(sampler) {
  const Ops& ops = model.runner().ops();
  memory_ = device.Allocate(Bytes(model.config(), model.options(), ops));
  t_.LayOut(model.config(), model.options(), ops, Arena(memory_->data(), memory_->size()));
  const auto all = static_cast<int32_t>(slots);
  device.Upload(t_.all_slots, std::as_bytes(std::span(&all, 1)));
}

void MtpProposer::Propose(const DrawnStep& step, const TensorView& hidden) {
  const Shard& shard = model_.options().shard;
  if (shard.last_stage()) ProposeOfLastStage(step, hidden);
  if (shard.groups.stages == nullptr) return;
  OpRunner& run = model_.runner();
  for (const TensorView& drafts : {step.slots.drafts, step.slots.num_drafts}) {
    run(run.ops().all_gather, Broadcast(drafts, t_.all_slots, shard.groups.stages));
  }
}

void MtpProposer::ProposeOfLastStage(const DrawnStep& step, const TensorView& hidden) {
  Prepare(step);
  if (step.tokens != DraftTokens::kAll) return;
  const TensorView all = model_.ForwardMtp(0, Shifted(step.batch), hidden, pool_);
  if (step.drafts == 0) return;
  const int64_t rows = step.rows.slot.dim(0);
  TensorView from = t_.hidden.Slice(0, 0, rows);
  OpRunner& run = model_.runner();
  run(run.ops().gather_tokens,
      {.x = all, .index = t_.draft_index.Slice(0, 0, rows), .live = t_.live_drafts, .out = from});
  AddDraft(step, from, 0);
  const Batch chain{.tokens = rows,
                    .step_tokens = std::max(rows, step.step_rows),
                    .ids = t_.likeliest.Slice(0, 0, rows),
                    .map = {.slots = t_.draft_slot.Slice(0, 0, rows),
                            .positions = t_.positions.Slice(0, 0, rows),
                            .page_table = step.slots.page_table,
                            .live = t_.live_drafts},
                    .absorbed_live = t_.live_drafts,
                    .absorbed_rows = rows};
  for (int32_t drafts = 1; drafts < step.drafts; ++drafts) {
    from = model_.ForwardMtp(0, chain, from, pool_);
    AddDraft(step, from, drafts);
  }
}

void MtpProposer::CacheKnown(const Batch& batch, const TensorView& hidden) {
  const Batch known = Shifted(batch.Known());
  model_.CacheMtp(0, known, hidden.Slice(0, 0, known.tokens), pool_);
}

Batch MtpProposer::Shifted(Batch batch) const {
  batch.ids = t_.next_ids.Slice(0, 0, batch.tokens);
  return batch;
}

void MtpProposer::Prepare(const DrawnStep& step) {
  const Batch& batch = step.batch;
  const int64_t rows = step.rows.slot.dim(0);
  OpRunner& run = model_.runner();
  run(run.ops().prepare_drafts, {.ids = batch.ids,
                                 .positions = batch.map.positions,
                                 .row_slot = step.rows.slot,
                                 .row_begin = step.rows.begin,
                                 .logit_begin = step.rows.logit_begin,
                                 .sampled = sampler_.drawn(),
                                 .row_count = step.rows.count,
                                 .live_rows = step.rows.live,
                                 .pass_vectors = sampler_.pass_vectors(),
                                 .slots = step.slots,
                                 .next_ids = t_.next_ids.Slice(0, 0, batch.tokens),
                                 .draft_slot = t_.draft_slot.Slice(0, 0, rows),
                                 .draft_index = t_.draft_index.Slice(0, 0, rows),
                                 .live_drafts = t_.live_drafts,
                                 .pass_live = t_.pass_live});
}

void MtpProposer::AddDraft(const DrawnStep& step, const TensorView& hidden, int32_t drafts) {
  const int64_t rows = step.rows.slot.dim(0);
  OpRunner& run = model_.runner();
  for (int64_t begin = 0, pass = 0; begin < rows; begin += sampler_.pass_vectors(), ++pass) {
    const int64_t end = std::min(begin + sampler_.pass_vectors(), rows);
    const TensorView live = t_.pass_live.Slice(0, pass, pass + 1);
    const TensorView likeliest = t_.likeliest.Slice(0, begin, end);
    model_.Logits(hidden.Slice(0, begin, end), live, sampler_.draft_logits(end - begin));
    sampler_.Likeliest(live, likeliest);
    run(run.ops().add_draft, {.draft_slot = t_.draft_slot.Slice(0, begin, end),
                              .likeliest = likeliest,
                              .live = live,
                              .drafts = drafts,
                              .slots = step.slots,
                              .positions = t_.positions.Slice(0, begin, end)});
  }
}

}  // namespace fathom
