#include "sampling/slots.h"

#include <vector>

#include "base/token_mask.h"

namespace fathom {

size_t Slots::LayOut(const SlotsCapacity& capacity, Arena arena, SlotState& s) {
  const int64_t slots = capacity.slots, vocab = capacity.vocab;
  for (TensorView* view : {&s.last_token, &s.length, &s.generated, &s.final_length, &s.ended,
                           &s.num_drafts, &s.top_k, &s.min_tokens}) {
    *view = arena.Allocate(DType::kI32, {slots});
  }
  for (TensorView* view :
       {&s.temperature, &s.top_p, &s.min_p, &s.presence, &s.frequency, &s.repetition}) {
    *view = arena.Allocate(DType::kF32, {slots});
  }
  s.drafts = arena.Allocate(DType::kI32, {slots, capacity.max_drafts});
  if (capacity.max_text > 0) {
    s.history = arena.Allocate(DType::kI32, {slots, capacity.max_text});
  }
  s.page_table = arena.Allocate(DType::kI32, {slots, capacity.max_pages});
  s.seed = arena.Allocate(DType::kI32, {slots, 2});
  s.stop_tokens = arena.Allocate(DType::kI32, {slots, kMaxStopTokens});
  s.bias_ids = arena.Allocate(DType::kI32, {slots, kMaxLogitBias});
  s.bias_values = arena.Allocate(DType::kF32, {slots, kMaxLogitBias});
  s.logprob_ids = arena.Allocate(DType::kI32, {slots, kMaxLogprobTokenIds});
  s.counts = arena.Allocate(DType::kI32, {slots, vocab});
  s.in_prompt = arena.Allocate(DType::kU8, {slots, vocab});
  s.masked = arena.Allocate(DType::kI32, {slots});
  s.mask = arena.Allocate(DType::kI32, {slots, (1 + capacity.max_drafts) * MaskWords(vocab)});
  return arena.used();
}

size_t Slots::Bytes(const SlotsCapacity& capacity) {
  SlotState state;
  return LayOut(capacity, Arena::Measuring(), state);
}

Slots::Slots(const SlotsCapacity& capacity, Device& device)
    : capacity_(capacity), device_(device), memory_(device.Allocate(Bytes(capacity))) {
  LayOut(capacity, Arena(memory_->data(), memory_->size()), state_);
}

template <class T>
void Slots::Set(const TensorView& per_slot, SlotId slot, T value) {
  device_.Upload(per_slot.Slice(0, Raw(slot), Raw(slot) + 1), std::as_bytes(std::span(&value, 1)));
}

void Slots::Open(const SlotOpening& opening) {
  const RequestParams& params = *opening.params;
  const SamplingParams& p = params.sampling;
  const SlotId slot = opening.slot;
  CHECK(params.stop_tokens.size() <= kMaxStopTokens && p.logit_bias.size() <= kMaxLogitBias &&
        p.logprob_token_ids.size() <= kMaxLogprobTokenIds);
  Set<int32_t>(state_.last_token, slot, 0);
  Set(state_.length, slot, opening.length);
  Set(state_.generated, slot, static_cast<int32_t>(opening.generated.size()));
  Set(state_.final_length, slot, opening.final_length);
  Set<int32_t>(state_.ended, slot, 0);
  Set<int32_t>(state_.num_drafts, slot, 0);
  Set<int32_t>(state_.masked, slot, 0);
  Set(state_.min_tokens, slot, params.min_tokens);
  Set(state_.top_k, slot, p.top_k);
  Set(state_.temperature, slot, p.temperature);
  Set(state_.top_p, slot, p.top_p);
  Set(state_.min_p, slot, p.min_p);
  Set(state_.presence, slot, p.presence_penalty);
  Set(state_.frequency, slot, p.frequency_penalty);
  Set(state_.repetition, slot, p.repetition_penalty);

  const auto upload = [&](const TensorView& view, const auto& values) {
    device_.Upload(view.At(Raw(slot)), std::as_bytes(std::span(values)));
  };
  upload(state_.seed, std::vector<int32_t>{static_cast<int32_t>(p.seed & 0xffffffff),
                                           static_cast<int32_t>(p.seed >> 32)});
  std::vector<int32_t> stops(kMaxStopTokens, -1), bias_ids(kMaxLogitBias, -1);
  std::vector<float> bias_values(kMaxLogitBias, 0.0f);
  for (size_t i = 0; i < params.stop_tokens.size(); ++i) stops[i] = Raw(params.stop_tokens[i]);
  for (size_t i = 0; i < p.logit_bias.size(); ++i) {
    bias_ids[i] = Raw(p.logit_bias[i].first);
    bias_values[i] = p.logit_bias[i].second;
  }
  upload(state_.stop_tokens, stops);
  upload(state_.bias_ids, bias_ids);
  upload(state_.bias_values, bias_values);
  std::vector<TokenId> logprob_ids = p.logprob_token_ids;
  logprob_ids.resize(kMaxLogprobTokenIds, TokenId{-1});
  upload(state_.logprob_ids, logprob_ids);

  std::vector<int32_t> counts(static_cast<size_t>(capacity_.vocab), 0);
  std::vector<uint8_t> in_prompt(static_cast<size_t>(capacity_.vocab), 0);
  for (TokenId token : opening.generated) ++counts[static_cast<size_t>(Raw(token))];
  for (TokenId token : params.prompt) in_prompt[static_cast<size_t>(Raw(token))] = 1;
  if (!state_.history.absent()) {
    std::vector<TokenId> text = params.prompt;
    text.insert(text.end(), opening.generated.begin(), opening.generated.end());
    const auto size = static_cast<int64_t>(text.size());
    device_.Upload(state_.history.At(Raw(slot)).Slice(0, 0, size), std::as_bytes(std::span(text)));
  }
  upload(state_.counts, counts);
  upload(state_.in_prompt, in_prompt);
}

void Slots::SetMasks(SlotId slot, std::span<const uint32_t> words) {
  const auto size = static_cast<int64_t>(words.size());
  CHECK(size > 0 && size % MaskWords(capacity_.vocab) == 0, "masks of {} words", size);
  Set<int32_t>(state_.masked, slot, 1);
  device_.Upload(state_.mask.At(Raw(slot)).Slice(0, 0, size), std::as_bytes(words));
}

void Slots::SetPages(SlotId slot, int32_t first, std::span<const PageId> pages) {
  static_assert(sizeof(PageId) == sizeof(int32_t));
  const auto count = static_cast<int64_t>(pages.size());
  device_.Upload(state_.page_table.At(Raw(slot)).Slice(0, first, first + count),
                 std::as_bytes(pages));
}

}  // namespace fathom
