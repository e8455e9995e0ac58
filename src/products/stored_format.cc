#include "products/stored_format.h"

namespace fathom {
WeightFormat StoredFormat(const WeightTensor& part) {
  switch (part.values.dtype()) {
    case DType::kF32: return WeightFormat::kF32;
    case DType::kF16: return WeightFormat::kF16;
    case DType::kBF16: return WeightFormat::kBF16;
    case DType::kF8E4M3: return WeightFormat::kFp8;
    default: CHECK(false, "pack: weights of {}", part.values.ToString());
  }
}

Result<WeightFormat> CommonFormat(const PackArgs& a, bool quantize_activations) {
  const WeightTensor& first = a.matrices[0].parts[0];
  bool lined_up = true;
  for (const WeightSource& source : a.matrices) {
    for (const WeightTensor& part : source.parts) {
      if (part.values.dtype() != first.values.dtype()) {
        return Unimplemented("parts in both {} and {}; convert them to one type",
                             Name(first.values.dtype()), Name(part.values.dtype()));
      }
      lined_up &= part.col_offset == first.col_offset;
    }
  }
  if (lined_up || first.values.dtype() != DType::kF8E4M3) return StoredFormat(first);
  if (!quantize_activations) return WeightFormat::kF32;
  return Unimplemented("FP8 parts whose columns begin at different places in their scale tiles");
}

}  // namespace fathom
