#include "sampling/sampler.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "tensor/buffer.h"

namespace fathom {

Sampler::Sampler(SamplerCapacity capacity, const Ops& ops, Device& device)
    : capacity_(capacity), run_(ops, device) {
  const int64_t rows = capacity.rows, top = std::min<int64_t>(kMaxTopLogprobs, capacity.vocab);
  const auto layout = [&](Arena arena) {
    for (TensorView* view : {&identity_, &index_, &row_slot_, &position_, &tokens_, &ok_,
                             &given_tokens_, &sampled_index_}) {
      *view = arena.Allocate(DType::kI32, {rows});
    }
    live_ = arena.Allocate(DType::kI32, {1});
    hidden_ = arena.Allocate(ops.activation, {rows, capacity.hidden});
    logits_ = arena.Allocate(DType::kF32, {rows, capacity.vocab});
    adjusted_ = arena.Allocate(DType::kF32, {rows, capacity.vocab});
    logprob_ = arena.Allocate(DType::kF32, {rows});
    top_ids_ = arena.Allocate(DType::kI32, {rows, top});
    top_logprobs_ = arena.Allocate(DType::kF32, {rows, top});
    return arena.used();
  };
  memory_ = device.Allocate(layout(Arena::Measuring()));
  layout(Arena(memory_->data(), memory_->size()));

  std::vector<int32_t> identity(static_cast<size_t>(rows));
  std::iota(identity.begin(), identity.end(), 0);
  Upload<int32_t>(identity_, identity);

  // One pass at full capacity, without running anything.
  rows_ = rows;
  const Slots one_slot({.slots = 1, .vocab = capacity.vocab, .max_pages = 1}, device);
  Gather(hidden_);
  Sample(one_slot.state());
  run_(ops.log_probs, {.logits = logits(),
                       .tokens = tokens_,
                       .live = live_,
                       .logprob = logprob_,
                       .top_ids = top_ids_,
                       .top_logprobs = top_logprobs_});
  run_.Allocate();
}

template <class T>
TensorView Sampler::Upload(const TensorView& to, std::span<const T> from) {
  static_assert(sizeof(T) == sizeof(int32_t));
  const TensorView front = to.Slice(0, 0, static_cast<int64_t>(from.size()));
  if (!from.empty()) run_.device().Upload(front, std::as_bytes(from));
  return front;
}

void Sampler::Stage(const SamplerRows& rows) {
  live_rows_ = static_cast<int64_t>(rows.index.size());
  rows_ = std::max(live_rows_, rows.padded);
  CHECK(rows_ <= capacity_.rows, "{} rows in a pass, capacity {}", rows_, capacity_.rows);
  CHECK(rows.slots.size() == rows.positions.size());
  const auto live = static_cast<int32_t>(live_rows_);
  Upload(live_, std::span(&live, 1));
  Upload(index_, rows.index);
  Upload(row_slot_, rows.slots);
  Upload(position_, rows.positions);
  Upload(sampled_index_, rows.sampled_index);
}

TensorView Sampler::Gather(const TensorView& hidden) {
  const TensorView out = hidden_.Slice(0, 0, rows_);
  run_(run_.ops().gather_rows,
       {.x = hidden, .index = index_.Slice(0, 0, rows_), .live = live_, .out = out});
  return out;
}

void Sampler::Sample(const SlotState& state) {
  const Ops& ops = run_.ops();
  const TensorView row_slot = row_slot_.Slice(0, 0, rows_);
  const TensorView adjusted = adjusted_.Slice(0, 0, rows_);
  // A copy: log-probabilities are those of the raw logits.
  run_(ops.gather_rows,
       {.x = logits(), .index = identity_.Slice(0, 0, rows_), .live = live_, .out = adjusted});
  run_(ops.adjust_logits,
       {.logits = adjusted, .row_slot = row_slot, .slots = state, .live = live_});
  run_(ops.sample, {.logits = adjusted,
                    .row_slot = row_slot,
                    .position = position_.Slice(0, 0, rows_),
                    .slots = state,
                    .live = live_,
                    .tokens = tokens_.Slice(0, 0, rows_),
                    .ok = ok_.Slice(0, 0, rows_)});
}

void Sampler::Commit(const TensorView& row_slot, const TensorView& row_begin,
                     const TensorView& positions, const TensorView& live_rows,
                     const SlotState& state) {
  run_(run_.ops().commit, {.row_slot = row_slot,
                           .row_begin = row_begin,
                           .positions = positions,
                           .sampled_index = sampled_index_.Slice(0, 0, row_slot.dim(0)),
                           .sampled_tokens = tokens_.Slice(0, 0, rows_),
                           .live_rows = live_rows,
                           .slots = state});
}

TokenLogprobs Sampler::PassLogprobs::row(size_t row, int32_t top) const {
  const size_t width = top_ids.size() / rows();
  TokenLogprobs result = {.logprob = logprobs[row]};
  for (size_t i = 0; i < std::min(width, static_cast<size_t>(top)); ++i) {
    result.top.emplace_back(TokenId{top_ids[row * width + i]}, top_logprobs[row * width + i]);
  }
  return result;
}

void Sampler::LogProbs(std::span<const TokenId> tokens, int32_t top, PassLogprobs& to) {
  const int64_t count = std::min<int64_t>(top, capacity_.vocab);
  rows_ = live_rows_;  // the host reads them all
  const TensorView of = tokens.empty() ? tokens_.Slice(0, 0, rows_) : Upload(given_tokens_, tokens);
  const TensorView logprob = logprob_.Slice(0, 0, rows_);
  const TensorView top_ids(top_ids_.data(), DType::kI32, {rows_, count});
  const TensorView top_logprobs(top_logprobs_.data(), DType::kF32, {rows_, count});
  run_(run_.ops().log_probs, {.logits = logits(),
                              .tokens = of,
                              .live = live_,
                              .logprob = logprob,
                              .top_ids = top_ids,
                              .top_logprobs = top_logprobs});
  to.logprobs.resize(static_cast<size_t>(rows_));
  to.top_ids.resize(static_cast<size_t>(rows_ * count));
  to.top_logprobs.resize(to.top_ids.size());
  Device& device = run_.device();
  device.Download(std::as_writable_bytes(std::span(to.logprobs)), logprob);
  device.Download(std::as_writable_bytes(std::span(to.top_ids)), top_ids);
  device.Download(std::as_writable_bytes(std::span(to.top_logprobs)), top_logprobs);
}

void Sampler::Download(Drawn& drawn) {
  drawn.ids.resize(static_cast<size_t>(live_rows_));
  drawn.ok.resize(drawn.ids.size());
  Device& device = run_.device();
  device.Download(std::as_writable_bytes(std::span(drawn.ids)), tokens_.Slice(0, 0, live_rows_));
  device.Download(std::as_writable_bytes(std::span(drawn.ok)), ok_.Slice(0, 0, live_rows_));
}

}  // namespace fathom
