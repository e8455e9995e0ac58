// The token product that every matrix op of the reference table is made of.
#pragma once

#include "products/reference/reference_weight.h"

namespace fathom {

// Floats of work space that MultiplyToken needs.
inline int64_t MultiplyTokenWorkspace(const PackedWeight& w) {
  return w.quantize_activations ? kScaleTile + w.out : 0;
}

// y[n] = sum over k of x[k] w[n, k] with matrix `m`, in fp32 and in this order:
//   activations as they are: ascending k, starting from 0.
//   quantised: run after run. QuantizeRun gives the run's codes q and scale s; their products with
//         the weight's codes are exact in fp32 and summed in ascending k, starting from 0; then
//         y[n] += sum * (s * weight scale).
void MultiplyToken(const ReferenceWeight& w, int64_t m, const float* x, float* y, float* workspace);

}  // namespace fathom
