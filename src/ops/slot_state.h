// What the device keeps of a running request.
#pragma once

#include "tensor/tensor_view.h"

namespace fathom {

// The device-resident state of running requests, an entry per slot. sampling/ owns it.
struct SlotState {
  TensorView last_token;  // I32 [slots]
  TensorView length;      // I32 [slots]: tokens whose latents are cached; last_token's position
  TensorView generated;   // I32 [slots]: sampled tokens, counted over preemptions
  TensorView
      final_length;       // I32 [slots]: prompt and generated tokens at which it ends at the latest
  TensorView ended;       // I32 [slots]: 1 once a stop token was sampled, or sampling failed
  TensorView drafts;      // I32 [slots, most drafts]: guesses at what follows last_token
  TensorView num_drafts;  // I32 [slots]
  // I32 [slots, positions]: the request's tokens, as far as they are known; absent if nobody asks.
  TensorView history;
  TensorView page_table;  // I32 [slots, max_pages]
  // What SamplingParams says (request/params.h).
  TensorView temperature, top_p, min_p;        // F32 [slots]
  TensorView top_k;                            // I32 [slots]; 0: no limit
  TensorView presence, frequency, repetition;  // F32 [slots]
  TensorView seed;                             // I32 [slots, 2]: low and high half
  TensorView min_tokens;                       // I32 [slots]
  TensorView stop_tokens;                      // I32 [slots, stop tokens], padded with -1
  TensorView bias_ids;                         // I32 [slots, biases], padded with -1
  TensorView bias_values;                      // F32 [slots, biases]
  TensorView logprob_ids;  // I32 [slots, ids], padded with -1: SamplingParams::logprob_token_ids
  TensorView counts;       // I32 [slots, vocab]: times generated
  TensorView in_prompt;    // U8 [slots, vocab]: 1 where the prompt has the token
  TensorView masked;       // I32 [slots]: 1: nothing is sampled but what `mask` allows
  // I32 [slots, (1 + drafts) * words]: base/token_mask.h; what may follow the last token, and each
  // draft
  TensorView mask;
};

// What the slots of logit vectors name, to be looked up in each of these; absent: nothing.
struct SlotIds {
  TensorView index;       // I32 [logit vectors]: each one's token of the batch
  TensorView token_slot;  // I32 [tokens]
  TensorView of_slots;    // I32 [slots, most ids], in [0, vocab), padded with -1
  TensorView logprobs;    // F32 [logit vectors, ids], out: of the first `ids`; NaN for -1
};

}  // namespace fathom
