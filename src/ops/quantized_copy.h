// What is written beside an activation for products that quantise what they read.
#pragma once

#include "tensor/tensor_view.h"

namespace fathom {

// An activation as products with quantised activations read it (QuantizeRun of each 128 channels),
// beside the activation itself: what writes that makes it, so that products need not. It changes no
// bit, and a table may leave it alone.
struct QuantizedCopy {
  TensorView codes;   // F8E4M3 [tokens, width]
  TensorView scales;  // F32 [ceil(width / 128), a multiple of 32, at least tokens]
  bool scale_ue8m0 = false;

  bool absent() const { return codes.absent(); }
};

}  // namespace fathom
