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
  // Of a benchmark: this share stands, whatever was drawn (synthetic_acceptance.h). Negative: no.
  double synthetic_acceptance = -1;
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

// What a draft layer (DeepSeek-V3, section 2.2) computes behind a step: it goes over the step's
// tokens, each beside the token that follows it, and proposes for each slot that sampled and goes
// on, from the token before the slot's last one. Behind commit.
struct PrepareDraftsArgs {
  TensorView ids, positions;  // I32 [tokens]: the step's
  TensorView row_slot;        // I32 [rows]
  TensorView row_begin;       // I32 [rows + 1]
  TensorView logit_begin;     // I32 [rows + 1]
  TensorView sampled;         // I32 [logit vectors]; -1 where sampling failed
  TensorView row_count;       // I32 [rows]: as commit left them
  TensorView live_rows;       // I32 [1]
  int64_t pass_vectors = 1;   // of logits of drafts
  SlotState slots;            // out: num_drafts, 0. Has a history.

  TensorView next_ids;     // I32 [tokens], out: the token at the next position
  TensorView draft_slot;   // I32 [rows], out: who gets drafts, in the rows' order
  TensorView draft_index;  // I32 [rows], out: the batch's token from which
  TensorView live_drafts;  // I32 [1], out: of these
  TensorView pass_live;    // I32 [passes], out: of each pass of them
};

// One draft more for each slot that has `drafts` of them.
struct AddDraftArgs {
  TensorView draft_slot;  // I32 [rows]
  TensorView likeliest;   // I32 [rows]: what is guessed
  TensorView live;        // I32 [1]: rows
  int32_t drafts = 0;
  SlotState slots;  // out: drafts, num_drafts
  // I32 [rows], out: where the draft layer goes on from here, beside what was guessed. It stays
  // below the last position that the request computes, behind which drafts are of no use.
  TensorView positions;
};

void Check(const VerifyDraftsArgs&);
void Check(const ProposeNgramArgs&);
void Check(const PrepareDraftsArgs&);
void Check(const AddDraftArgs&);

}  // namespace fathom
