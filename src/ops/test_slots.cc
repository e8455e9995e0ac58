#include "ops/test_slots.h"

#include "base/token_mask.h"

namespace fathom {

static TestTensor Filled(DType dtype, int64_t slots, int64_t width, float value) {
  return TestTensor(dtype, {slots, width}, std::vector<float>(slots * width, value));
}

static TestTensor Filled(DType dtype, int64_t slots, float value) {
  return TestTensor(dtype, {slots}, std::vector<float>(slots, value));
}

TestSlots::TestSlots(int slots, int vocab, int stops, int biases, int most_drafts, int most_text)
    : last_token(Filled(DType::kI32, slots, 0)),
      length(Filled(DType::kI32, slots, 0)),
      generated(Filled(DType::kI32, slots, 0)),
      final_length(Filled(DType::kI32, slots, 1000)),
      ended(Filled(DType::kI32, slots, 0)),
      drafts(Filled(DType::kI32, slots, most_drafts, -1)),
      num_drafts(Filled(DType::kI32, slots, 0)),
      history(Filled(DType::kI32, slots, most_text, -1)),
      page_table(Filled(DType::kI32, slots, 2, 0)),
      temperature(Filled(DType::kF32, slots, 1)),
      top_p(Filled(DType::kF32, slots, 1)),
      min_p(Filled(DType::kF32, slots, 0)),
      top_k(Filled(DType::kI32, slots, 0)),
      presence(Filled(DType::kF32, slots, 0)),
      frequency(Filled(DType::kF32, slots, 0)),
      repetition(Filled(DType::kF32, slots, 1)),
      seed(Filled(DType::kI32, slots, 2, 0)),
      min_tokens(Filled(DType::kI32, slots, 0)),
      stop_tokens(Filled(DType::kI32, slots, stops, -1)),
      bias_ids(Filled(DType::kI32, slots, biases, -1)),
      bias_values(Filled(DType::kF32, slots, biases, 0)),
      counts(Filled(DType::kI32, slots, vocab, 0)),
      in_prompt(Filled(DType::kU8, slots, vocab, 0)),
      masked(Filled(DType::kI32, slots, 0)),
      mask(Filled(DType::kI32, slots, (1 + most_drafts) * MaskWords(vocab), 0)) {}

SlotState TestSlots::state() const {
  return {.last_token = last_token,
          .length = length,
          .generated = generated,
          .final_length = final_length,
          .ended = ended,
          .drafts = drafts,
          .num_drafts = num_drafts,
          .history = history,
          .page_table = page_table,
          .temperature = temperature,
          .top_p = top_p,
          .min_p = min_p,
          .top_k = top_k,
          .presence = presence,
          .frequency = frequency,
          .repetition = repetition,
          .seed = seed,
          .min_tokens = min_tokens,
          .stop_tokens = stop_tokens,
          .bias_ids = bias_ids,
          .bias_values = bias_values,
          .counts = counts,
          .in_prompt = in_prompt,
          .masked = masked,
          .mask = mask};
}

}  // namespace fathom
