#include "model/batch.h"

#include <algorithm>

namespace fathom {
namespace {

int64_t Passes(int64_t logit_vectors, int64_t pass_vectors) {
  return (logit_vectors + pass_vectors - 1) / pass_vectors;
}

// How many tokens there are of each kind, and where the expanded rows lie.
Batch TokensOf(std::span<const BatchRow> rows) {
  Batch batch;
  for (const BatchRow& row : rows) {
    if (row.form == AttentionForm::kExpanded) {
      CHECK(!row.is_decode() && batch.tokens == batch.expanded_tokens, "expanded rows come first");
      batch.expanded.push_back({batch.tokens, row.num_tokens(), row.begin, row.slot});
      batch.expanded_tokens += row.num_tokens();
    }
    if (!row.is_decode()) {
      CHECK(batch.tokens == batch.known_tokens, "decodes come last");
      batch.known_tokens += row.num_tokens();
    }
    batch.tokens += row.num_tokens();
  }
  return batch;
}

}  // namespace

Batch Batch::Known() const {
  const int64_t known = std::max<int64_t>(known_tokens, 1);
  return {.tokens = known,
          .step_tokens = step_tokens,
          .ids = ids.Slice(0, 0, known),
          .map = {.slots = map.slots.Slice(0, 0, known),
                  .positions = map.positions.Slice(0, 0, known),
                  .page_table = map.page_table,
                  .live = known_live},
          .known_tokens = known_tokens,
          .known_live = known_live};
}

size_t StepInputs::LayOut(Arena arena) {
  const int64_t rows = capacity_.rows,
                passes = Passes(capacity_.logit_vectors, capacity_.pass_vectors);
  const auto allocate = [&](std::initializer_list<TensorView*> views, int64_t size) {
    for (TensorView* view : views) *view = arena.Allocate(DType::kI32, {size});
  };
  allocate({&row_slot_, &plan_begin_, &plan_samples_, &row_count_}, rows);
  allocate({&row_capacity_, &row_begin_, &logit_begin_}, rows + 1);
  allocate({&plan_tokens_, &ids_, &positions_, &token_slot_}, capacity_.tokens);
  allocate({&counts_}, 2 + passes);
  allocate({&live_tokens_, &absorbed_live_}, 1);
  allocate({&logit_index_, &logit_ordinal_}, capacity_.logit_vectors);
  allocate({&pass_live_}, passes);
  return arena.used();
}

size_t StepInputs::Bytes(const BatchCapacity& capacity) {
  StepInputs measured;
  measured.capacity_ = capacity;
  return measured.LayOut(Arena::Measuring());
}

StepInputs::StepInputs(const BatchCapacity& capacity, Device& device)
    : capacity_(capacity), device_(&device), memory_(device.Allocate(Bytes(capacity))) {
  LayOut(Arena(memory_->data(), memory_->size()));
}

// `fill` puts into staging_ what goes to the front of `to`.
template <class Fill>
void StepInputs::Upload(const TensorView& to, const Fill& fill) {
  staging_.clear();
  fill();
  device_->Upload(to.Slice(0, 0, static_cast<int64_t>(staging_.size())),
                  std::as_bytes(std::span(staging_)));
}

Batch StepInputs::Stage(std::span<const BatchRow> rows, const SlotState& slots,
                        const BatchCapacity& padded, bool keeps_logits) {
  Batch batch = TokensOf(rows);
  int64_t logit_vectors = 0;
  for (const BatchRow& row : rows) logit_vectors += row.logit_vectors();
  const int64_t live_tokens = batch.tokens;
  CHECK(padded.tokens == 0 || (batch.expanded.empty() && padded.tokens >= batch.tokens),
        "{} tokens padded to {}", batch.tokens, padded.tokens);
  batch.tokens = batch.step_tokens = std::max(batch.tokens, padded.tokens);
  logit_vectors_ = std::max(logit_vectors, padded.logit_vectors);
  const int64_t shape = std::max(static_cast<int64_t>(rows.size()), padded.rows);
  CHECK(shape <= capacity_.rows && batch.tokens <= capacity_.tokens &&
            logit_vectors_ <= capacity_.logit_vectors,
        "{} rows, {} tokens and {} logit vectors in a step, capacities {}, {} and {}", shape,
        batch.tokens, logit_vectors_, capacity_.rows, capacity_.tokens, capacity_.logit_vectors);

  Upload(row_slot_, [&] {
    for (const BatchRow& row : rows) staging_.push_back(Raw(row.slot));
  });
  Upload(row_capacity_, [&] {
    int64_t begin = 0;
    for (const BatchRow& row : rows) {
      staging_.push_back(static_cast<int32_t>(begin));
      begin += row.num_tokens();
    }
    staging_.push_back(static_cast<int32_t>(begin));
  });
  Upload(plan_begin_, [&] {
    for (const BatchRow& row : rows) staging_.push_back(row.is_decode() ? -1 : row.begin);
  });
  Upload(plan_samples_, [&] {
    for (const BatchRow& row : rows) staging_.push_back(row.samples ? 1 : 0);
  });
  Upload(plan_tokens_, [&] {
    for (const BatchRow& row : rows) {
      for (TokenId token : row.tokens) staging_.push_back(Raw(token));
      if (row.is_decode()) staging_.insert(staging_.end(), static_cast<size_t>(1 + row.drafts), 0);
    }
    CHECK(static_cast<int64_t>(staging_.size()) == live_tokens);
  });
  Upload(counts_, [&] {
    staging_ = {static_cast<int32_t>(rows.size()), static_cast<int32_t>(batch.known_tokens)};
    for (int64_t at = 0; at < logit_vectors_; at += capacity_.pass_vectors) {
      const int64_t kept = std::clamp<int64_t>(logit_vectors - at, 0, capacity_.pass_vectors);
      staging_.push_back(keeps_logits ? static_cast<int32_t>(kept) : 0);
    }
  });

  batch.ids = ids_.Slice(0, 0, batch.tokens);
  batch.map = {.slots = token_slot_.Slice(0, 0, batch.tokens),
               .positions = positions_.Slice(0, 0, batch.tokens),
               .page_table = slots.page_table,
               .live = live_tokens_};
  batch.absorbed_live = absorbed_live_;
  batch.absorbed_rows = shape - static_cast<int64_t>(batch.expanded.size());
  batch.known_live = counts_.Slice(0, 1, 2);
  rows_ = {.slot = row_slot_.Slice(0, 0, shape),
           .begin = row_begin_.Slice(0, 0, shape + 1),
           .count = row_count_.Slice(0, 0, shape),
           .logit_begin = logit_begin_.Slice(0, 0, shape + 1),
           .live = counts_.Slice(0, 0, 1)};
  CutPasses();
  return batch;
}

void StepInputs::CutPasses() {
  passes_.clear();
  for (int64_t at = 0, pass = 0; at < logit_vectors_; at += capacity_.pass_vectors, ++pass) {
    const int64_t end = std::min(at + capacity_.pass_vectors, logit_vectors_);
    passes_.push_back({.index = logit_index_.Slice(0, at, end),
                       .ordinal = logit_ordinal_.Slice(0, at, end),
                       .live = pass_live_.Slice(0, pass, pass + 1),
                       .kept = counts_.Slice(0, 2 + pass, 3 + pass)});
  }
}

void StepInputs::Prepare(OpRunner& run, const Batch& batch, const SlotState& slots) const {
  const int64_t rows = rows_.slot.dim(0);
  run(run.ops().prepare_inputs,
      {.row_slot = rows_.slot,
       .row_capacity = row_capacity_.Slice(0, 0, rows + 1),
       .plan_tokens = plan_tokens_.Slice(0, 0, batch.tokens),
       .plan_begin = plan_begin_.Slice(0, 0, rows),
       .plan_samples = plan_samples_.Slice(0, 0, rows),
       .live_rows = rows_.live,
       .expanded_tokens = batch.expanded_tokens,
       .pass_vectors = capacity_.pass_vectors,
       .slots = slots,
       .ids = batch.ids,
       .positions = batch.map.positions,
       .token_slot = batch.map.slots,
       .live_tokens = live_tokens_,
       .absorbed_live = absorbed_live_,
       .row_begin = rows_.begin,
       .row_count = rows_.count,
       .logit_begin = rows_.logit_begin,
       .logit_index = logit_index_.Slice(0, 0, logit_vectors_),
       .logit_ordinal = logit_ordinal_.Slice(0, 0, logit_vectors_),
       .pass_live = pass_live_.Slice(0, 0, static_cast<int64_t>(passes_.size()))});
}

}  // namespace fathom
