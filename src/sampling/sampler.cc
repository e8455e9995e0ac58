#include "sampling/sampler.h"

#include <algorithm>
#include <optional>

#include "tensor/buffer.h"

namespace fathom {

Sampler::Sampler(SamplerCapacity capacity, const Ops& ops, Device& device)
    : capacity_(capacity), run_(ops, device) {
  const int64_t rows = capacity.rows, top = std::min<int64_t>(kMaxTopLogprobs, capacity.vocab);
  const auto layout = [&](Arena arena) {
    for (TensorView* view :
         {&index_, &row_slot_, &position_, &tokens_, &ok_, &given_tokens_, &sampled_index_}) {
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

  // One pass at full capacity, without running anything.
  rows_ = rows;
  const Slots one_slot({.slots = 1, .vocab = capacity.vocab, .max_pages = 1}, device);
  const std::vector<int32_t> zeros(static_cast<size_t>(rows));
  const std::vector<SlotId> slots(static_cast<size_t>(rows));
  GatherHidden(hidden_, zeros);
  Sample(slots, zeros, one_slot.state());
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
  run_.device().Upload(front, std::as_bytes(from));
  return front;
}

TensorView Sampler::GatherHidden(const TensorView& hidden, std::span<const int32_t> index) {
  rows_ = static_cast<int64_t>(index.size());
  const auto live = static_cast<int32_t>(rows_);
  Upload(live_, std::span(&live, 1));
  const TensorView out = hidden_.Slice(0, 0, rows_);
  run_(run_.ops().gather_rows,
       {.x = hidden, .index = Upload(index_, index), .live = live_, .out = out});
  return out;
}

TensorView Sampler::Sample(std::span<const SlotId> slots, std::span<const int32_t> positions,
                           const SlotState& state) {
  CHECK(static_cast<int64_t>(slots.size()) == rows_ && positions.size() == slots.size());
  const Ops& ops = run_.ops();
  const TensorView row_slot = Upload(row_slot_, slots);
  const TensorView adjusted = adjusted_.Slice(0, 0, rows_), tokens = tokens_.Slice(0, 0, rows_);
  // A copy: log-probabilities are those of the raw logits.
  std::vector<int32_t> identity(static_cast<size_t>(rows_));
  for (size_t i = 0; i < identity.size(); ++i) identity[i] = static_cast<int32_t>(i);
  run_(ops.gather_rows,
       {.x = logits(), .index = Upload<int32_t>(index_, identity), .live = live_, .out = adjusted});
  run_(ops.adjust_logits,
       {.logits = adjusted, .row_slot = row_slot, .slots = state, .live = live_});
  run_(ops.sample, {.logits = adjusted,
                    .row_slot = row_slot,
                    .position = Upload(position_, positions),
                    .slots = state,
                    .live = live_,
                    .tokens = tokens,
                    .ok = ok_.Slice(0, 0, rows_)});
  return tokens;
}

void Sampler::Commit(const TensorView& row_slot, const TensorView& row_begin,
                     const TensorView& positions, const TensorView& live_rows,
                     std::span<const int32_t> sampled_index, const SlotState& state) {
  run_(run_.ops().commit, {.row_slot = row_slot,
                           .row_begin = row_begin,
                           .positions = positions,
                           .sampled_index = Upload(sampled_index_, sampled_index),
                           .sampled_tokens = tokens_.Slice(0, 0, rows_),
                           .live_rows = live_rows,
                           .slots = state});
}

std::vector<RowLogprobs> Sampler::LogProbs(std::span<const TokenId> tokens, int32_t top) {
  const int64_t count = std::min<int64_t>(top, capacity_.vocab);
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

  const auto rows = static_cast<size_t>(rows_), width = static_cast<size_t>(count);
  std::vector<float> values(rows), tops(rows * width);
  std::vector<int32_t> ids(rows * width);
  Device& device = run_.device();
  device.Download(std::as_writable_bytes(std::span(values)), logprob);
  device.Download(std::as_writable_bytes(std::span(ids)), top_ids);
  device.Download(std::as_writable_bytes(std::span(tops)), top_logprobs);
  device.stream().Synchronize();
  std::vector<RowLogprobs> result(rows);
  for (size_t i = 0; i < rows; ++i) {
    result[i].logprob = values[i];
    for (size_t j = i * width; j < (i + 1) * width; ++j) {
      result[i].top.emplace_back(TokenId{ids[j]}, tops[j]);
    }
  }
  return result;
}

std::vector<std::optional<TokenId>> Sampler::Tokens() {
  std::vector<int32_t> ids(static_cast<size_t>(rows_)), ok(ids.size());
  Device& device = run_.device();
  device.Download(std::as_writable_bytes(std::span(ids)), tokens_.Slice(0, 0, rows_));
  device.Download(std::as_writable_bytes(std::span(ok)), ok_.Slice(0, 0, rows_));
  device.stream().Synchronize();
  std::vector<std::optional<TokenId>> tokens(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ok[i] != 0) tokens[i] = TokenId{ids[i]};
  }
  return tokens;
}

}  // namespace fathom
