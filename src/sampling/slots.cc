#include "sampling/slots.h"

#include "tensor/buffer.h"

namespace fathom {

Slots::Slots(SlotsCapacity capacity, Device& device) : capacity_(capacity), device_(device) {
  const int64_t slots = capacity.slots, vocab = capacity.vocab;
  const auto layout = [&](Arena arena) {
    SlotState& s = state_;
    for (TensorView* view : {&s.last_token, &s.length, &s.generated, &s.top_k, &s.min_tokens}) {
      *view = arena.Allocate(DType::kI32, {slots});
    }
    for (TensorView* view :
         {&s.temperature, &s.top_p, &s.min_p, &s.presence, &s.frequency, &s.repetition}) {
      *view = arena.Allocate(DType::kF32, {slots});
    }
    s.page_table = arena.Allocate(DType::kI32, {slots, capacity.max_pages});
    s.seed = arena.Allocate(DType::kI32, {slots, 2});
    s.banned = arena.Allocate(DType::kI32, {slots, kMaxBannedTokens});
    s.bias_ids = arena.Allocate(DType::kI32, {slots, kMaxLogitBias});
    s.bias_values = arena.Allocate(DType::kF32, {slots, kMaxLogitBias});
    s.counts = arena.Allocate(DType::kI32, {slots, vocab});
    s.in_prompt = arena.Allocate(DType::kU8, {slots, vocab});
    return arena.used();
  };
  memory_ = device.Allocate(layout(Arena::Measuring()));
  layout(Arena(memory_->data(), memory_->size()));
}

template <class T>
void Slots::Set(const TensorView& per_slot, SlotId slot, T value) {
  device_.Upload(per_slot.Slice(0, Raw(slot), Raw(slot) + 1), std::as_bytes(std::span(&value, 1)));
}

void Slots::Open(SlotId slot, const Entry& entry) {
  const SamplingParams& p = entry.params;
  CHECK(entry.banned.size() <= kMaxBannedTokens && p.logit_bias.size() <= kMaxLogitBias);
  // A token, since a decode is planned before it is known that sampling the first one failed (NaN).
  Set<int32_t>(state_.last_token, slot, 0);
  Set<int32_t>(state_.length, slot, 0);
  Set(state_.generated, slot, static_cast<int32_t>(entry.generated.size()));
  Set(state_.min_tokens, slot, entry.min_tokens);
  Set(state_.top_k, slot, p.top_k);
  Set(state_.temperature, slot, p.temperature);
  Set(state_.top_p, slot, p.top_p);
  Set(state_.min_p, slot, p.min_p);
  Set(state_.presence, slot, p.presence_penalty);
  Set(state_.frequency, slot, p.frequency_penalty);
  Set(state_.repetition, slot, p.repetition_penalty);

  const auto row = [&](const TensorView& view, const auto& values) {
    device_.Upload(view.At(Raw(slot)), std::as_bytes(std::span(values)));
  };
  row(state_.seed, std::vector<int32_t>{static_cast<int32_t>(p.seed & 0xffffffff),
                                        static_cast<int32_t>(p.seed >> 32)});
  std::vector<int32_t> banned(kMaxBannedTokens, -1), bias_ids(kMaxLogitBias, -1);
  std::vector<float> bias_values(kMaxLogitBias, 0.0f);
  for (size_t i = 0; i < entry.banned.size(); ++i) banned[i] = Raw(entry.banned[i]);
  for (size_t i = 0; i < p.logit_bias.size(); ++i) {
    bias_ids[i] = Raw(p.logit_bias[i].first);
    bias_values[i] = p.logit_bias[i].second;
  }
  row(state_.banned, banned);
  row(state_.bias_ids, bias_ids);
  row(state_.bias_values, bias_values);

  std::vector<int32_t> counts(static_cast<size_t>(capacity_.vocab), 0);
  std::vector<uint8_t> in_prompt(static_cast<size_t>(capacity_.vocab), 0);
  for (TokenId token : entry.generated) ++counts[static_cast<size_t>(Raw(token))];
  for (TokenId token : entry.prompt) in_prompt[static_cast<size_t>(Raw(token))] = 1;
  row(state_.counts, counts);
  row(state_.in_prompt, in_prompt);
}

void Slots::SetPages(SlotId slot, int32_t first, std::span<const PageId> pages) {
  static_assert(sizeof(PageId) == sizeof(int32_t));
  const auto count = static_cast<int64_t>(pages.size());
  device_.Upload(state_.page_table.At(Raw(slot)).Slice(0, first, first + count),
                 std::as_bytes(pages));
}

}  // namespace fathom
