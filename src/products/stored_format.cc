#include "products/stored_format.h"

namespace fathom {

Status RefuseUnknownFormats(const PackArgs& a) {
  for (const WeightSource& source : a.matrices) {
    for (const WeightTensor& part : source.parts) {
      if (IsStoredFormat(part.format)) continue;
      return Unimplemented(
          "weights stored as {}, which no product here reads; use a checkpoint in FP8 tiles, BF16, "
          "F16 or F32",
          Describe(part.format));
    }
  }
  return {};
}

Result<WeightFormat> CommonFormat(const PackArgs& a, bool quantize_activations) {
  const WeightTensor& first = a.matrices[0].parts[0];
  bool lined_up = true;
  for (const WeightSource& source : a.matrices) {
    for (const WeightTensor& part : source.parts) {
      if (part.format.values != first.format.values) {
        return Unimplemented("parts in both {} and {}; convert them to one type",
                             Name(first.values.dtype()), Name(part.values.dtype()));
      }
      lined_up &= part.format.scales.channels == first.format.scales.channels;
    }
  }
  if (lined_up) {
    WeightFormat format = first.format;
    format.scales.outputs.offset = 0;
    return format;
  }
  if (!quantize_activations) return WeightFormat::kF32;
  return Unimplemented("FP8 parts whose columns begin at different places in their scale tiles");
}

}  // namespace fathom
