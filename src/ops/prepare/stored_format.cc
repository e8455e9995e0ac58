#include "ops/prepare/stored_format.h"

namespace fathom {
namespace {

bool IsFp8(const WeightTensor& part) {
  return part.values.dtype() == DType::kF8E4M3;
}

}  // namespace

WeightFormat StoredFormat(const WeightTensor& part) {
  switch (part.values.dtype()) {
    case DType::kF32: return WeightFormat::kF32;
    case DType::kF16: return WeightFormat::kF16;
    case DType::kBF16: return WeightFormat::kBF16;
    case DType::kF8E4M3: return WeightFormat::kFp8;
    default: CHECK(false, "prepare: weights of {}", part.values.ToString());
  }
}

Result<WeightFormat> CommonFormat(const PrepareArgs& a, bool quantize_activations) {
  const WeightTensor& first = a.matrices[0].parts[0];
  bool alike = true;
  for (const WeightSource& source : a.matrices) {
    for (const WeightTensor& part : source.parts) {
      if (quantize_activations && IsFp8(part) != IsFp8(first)) {
        return Unimplemented("a matrix with parts in both {} and {}; convert them to one type",
                             Name(first.values.dtype()), Name(part.values.dtype()));
      }
      const bool lined_up = !IsFp8(part) || part.col_offset == first.col_offset;
      if (quantize_activations && !lined_up) {
        return Unimplemented("FP8 parts whose columns begin at {} and at {} of a scale tile",
                             first.col_offset, part.col_offset);
      }
      alike &= part.values.dtype() == first.values.dtype() && lined_up;
    }
  }
  return alike ? StoredFormat(first) : WeightFormat::kF32;
}

}  // namespace fathom
