#include "model/batch.h"

#include <algorithm>

#include "tensor/buffer.h"

namespace fathom {

StepInputs::StepInputs(BatchCapacity capacity, Device& device) : device_(device) {
  const auto layout = [&](Arena arena) {
    for (TensorView* view : {&row_slot_, &plan_position_}) {
      *view = arena.Allocate(DType::kI32, {capacity.rows});
    }
    row_begin_ = arena.Allocate(DType::kI32, {capacity.rows + 1});
    for (TensorView* view : {&plan_tokens_, &ids_, &positions_, &token_slot_}) {
      *view = arena.Allocate(DType::kI32, {capacity.tokens});
    }
    for (TensorView* view : {&live_rows_, &absorbed_live_, &live_tokens_}) {
      *view = arena.Allocate(DType::kI32, {1});
    }
    return arena.used();
  };
  memory_ = device.Allocate(layout(Arena::Measuring()));
  layout(Arena(memory_->data(), memory_->size()));
}

Batch StepInputs::Stage(std::span<const HostRow> rows, const SlotState& slots,
                        int64_t absorbed_row_limit, BatchCapacity padded) {
  const auto live_rows = static_cast<int64_t>(rows.size());
  rows_ = std::max(live_rows, padded.rows);
  CHECK(rows_ <= row_slot_.dim(0), "{} rows in a step, capacity {}", rows_, row_slot_.dim(0));
  const auto upload = [&](const TensorView& to, auto&& fill) {
    staging_.clear();
    fill();
    device_.Upload(to.Slice(0, 0, static_cast<int64_t>(staging_.size())),
                   std::as_bytes(std::span(staging_)));
  };

  Batch batch;
  for (const HostRow& row : rows) {
    if (row.num_tokens <= absorbed_row_limit) {
      CHECK(batch.expanded.empty(), "absorbed rows come first");
      batch.absorbed_tokens += row.num_tokens;
    } else {
      batch.expanded.push_back({batch.tokens, row.num_tokens, row.position, row.slot});
    }
    batch.tokens += row.num_tokens;
  }
  const int64_t live_tokens = batch.tokens;
  const auto absorbed_live = static_cast<int32_t>(batch.absorbed_tokens);
  if (padded.tokens > 0) {
    CHECK(batch.expanded.empty() && padded.tokens >= batch.tokens, "{} tokens padded to {}",
          batch.tokens, padded.tokens);
    batch.tokens = batch.absorbed_tokens = padded.tokens;
  }
  CHECK(batch.tokens <= ids_.dim(0), "{} tokens in a step, capacity {}", batch.tokens, ids_.dim(0));

  upload(row_slot_, [&] {
    for (const HostRow& row : rows) staging_.push_back(Raw(row.slot));
  });
  upload(row_begin_, [&] {
    int32_t begin = 0;
    for (const HostRow& row : rows) {
      staging_.push_back(begin);
      begin += row.num_tokens;
    }
    staging_.push_back(begin);
  });
  upload(plan_position_, [&] {
    for (const HostRow& row : rows) staging_.push_back(row.tokens.empty() ? -1 : row.position);
  });
  upload(plan_tokens_, [&] {
    for (const HostRow& row : rows) {
      for (TokenId token : row.tokens) staging_.push_back(Raw(token));
      if (row.tokens.empty()) staging_.push_back(-1);
    }
    CHECK(static_cast<int64_t>(staging_.size()) == live_tokens);
  });
  upload(live_rows_, [&] { staging_.push_back(static_cast<int32_t>(live_rows)); });
  upload(absorbed_live_, [&] { staging_.push_back(absorbed_live); });

  batch.ids = ids_.Slice(0, 0, batch.tokens);
  batch.map = {.slots = token_slot_.Slice(0, 0, batch.tokens),
               .positions = positions_.Slice(0, 0, batch.tokens),
               .page_table = slots.page_table,
               .live = live_tokens_};
  batch.absorbed_live = absorbed_live_;
  return batch;
}

void StepInputs::Prepare(OpRunner& run, const Batch& batch, const SlotState& slots) {
  run(run.ops().prepare_inputs, {.row_slot = row_slot(),
                                 .row_begin = row_begin(),
                                 .plan_tokens = plan_tokens_.Slice(0, 0, batch.tokens),
                                 .plan_position = plan_position_.Slice(0, 0, rows_),
                                 .live_rows = live_rows_,
                                 .slots = slots,
                                 .ids = batch.ids,
                                 .positions = batch.map.positions,
                                 .token_slot = batch.map.slots,
                                 .live_tokens = live_tokens_});
}

}  // namespace fathom
