// A step's rows on the device, as prepare_inputs makes them and sampling reads them.
#pragma once

#include "tensor/tensor_view.h"

namespace fathom {

struct RowTensors {
  TensorView slot;         // I32 [rows]
  TensorView begin;        // I32 [rows + 1]: first live token of the batch
  TensorView count;        // I32 [rows]: tokens that stand; at first those that are live
  TensorView logit_begin;  // I32 [rows + 1]: first logit vector
  TensorView live;         // I32 [1]: rows
};

// Tokens whose hidden states become logits at a time.
struct LogitPass {
  TensorView index;    // I32 [logit vectors]: each one's token of the batch
  TensorView ordinal;  // I32 [logit vectors]: how many of its row are before it; to sample
  TensorView live;     // I32 [1]: logit vectors
  // I32 [1]: how many keep the model's logits when they are drawn from, for their
  // log-probabilities; absent: all that are live.
  TensorView kept;

  int64_t vectors() const { return index.dim(0); }
};

}  // namespace fathom
