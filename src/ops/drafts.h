// What a slot's drafts are to a step: ops behind those that draw its tokens. Verifying is drawing:
// a draft stands if it is the token that was drawn in its place, so that the text is the same with
// drafts and without.
#pragma once

#include <cstdint>

#include "ops/slot_state.h"
#include "tensor/tensor_view.h"

namespace fathom {

// Lowers row_count to the tokens that stand: a decode's drafts stand up to the first that is not
// what was drawn in its place, and its last token always does. Before commit.
struct VerifyDraftsArgs {
  TensorView row_slot;     // I32 [rows]
  TensorView logit_begin;  // I32 [rows + 1]
  TensorView sampled;      // I32 [logit vectors]; -1 where sampling failed
  TensorView row_count;    // I32 [rows], in and out: live tokens of each row, then those that stand
  TensorView live_rows;    // I32 [1]
  SlotState slots;
};

// Which earlier text counts as a match: so many tokens alike, at least and at most.
struct NgramLookup {
  int32_t least = 0, most = 0;

  static constexpr int32_t kMost = 32;
};

// Guesses that a text repeats itself (Saxena 2023, "Prompt Lookup Decoding"): finds, for each row
// that sampled, where the slot's last tokens stood before, and takes what followed. Of the matches
// the longest counts, of those the last. Behind commit; notes what was drawn in slots.history.
struct ProposeNgramArgs {
  TensorView row_slot;     // I32 [rows]
  TensorView row_begin;    // I32 [rows + 1]
  TensorView positions;    // I32 [tokens]
  TensorView logit_begin;  // I32 [rows + 1]
  TensorView sampled;      // I32 [logit vectors]
  TensorView row_count;    // I32 [rows]: as commit left them
  TensorView live_rows;    // I32 [1]
  NgramLookup lookup;      // 1 <= least <= most <= kMost
  SlotState slots;         // out: drafts, num_drafts, history
};

void Check(const VerifyDraftsArgs&);
void Check(const ProposeNgramArgs&);

}  // namespace fathom
