// Slot state for the tests of ops.
#pragma once

#include <vector>

#include "ops/testing.h"

namespace fathom {

// Slots of requests that ask for nothing special: temperature 1, no cuts, no penalties, no drafts,
// room for a thousand tokens.
class TestSlots {
 public:
  TestSlots(int slots, int vocab, int stops = 3, int biases = 4, int most_drafts = 3,
            int most_text = 40);

  SlotState state() const;

  TestTensor last_token, length, generated, final_length, ended, drafts, num_drafts, history,
      page_table;
  TestTensor temperature, top_p, min_p, top_k, presence, frequency, repetition;
  TestTensor seed, min_tokens, stop_tokens, bias_ids, bias_values, counts, in_prompt;
  TestTensor masked, mask;
};

// Element (i, j) of a tensor of rank 1 or 2.
template <class T>
T& At(const TestTensor& tensor, int64_t i, int64_t j = 0) {
  return tensor.view().As<T>(i)[j];
}

}  // namespace fathom
