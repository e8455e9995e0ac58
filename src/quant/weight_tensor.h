// A weight as the checkpoint stores it.
#pragma once

#include <cstdint>

#include "quant/e4m3.h"
#include "tensor/tensor_view.h"

namespace fathom {

// Views of mapped files; a slice or a transpose is again a view.
struct WeightTensor {
  TensorView values;  // [out, in] in BF16, F16, F32 or F8_E4M3, any strides; a vector has rank 1
  // F32 [tiles over out, tiles over in]: value = values * scales, one scale per 128x128 tile.
  // Absent unless FP8.
  TensorView scales;
  int32_t row_offset = 0;  // where values(0, 0) lies inside the first tile: [0, 128)
  int32_t col_offset = 0;
};

// The weight at (row, col) in fp32, q * scale for FP8. Slow: for packing, checks and tests.
// REQUIRES: rank 2, in range.
float Dequantize(const WeightTensor& w, int64_t row, int64_t col);

// Rows or columns [begin, end); a border may cut a scale tile. REQUIRES: rank 2, in range.
WeightTensor SliceRows(const WeightTensor& w, int64_t begin, int64_t end);
WeightTensor SliceCols(const WeightTensor& w, int64_t begin, int64_t end);
// Values, scales and offsets exchanged. REQUIRES: rank 2.
WeightTensor Transposed(const WeightTensor& w);

}  // namespace fathom
