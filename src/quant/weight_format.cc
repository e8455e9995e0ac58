#include "quant/weight_format.h"

#include "base/check.h"

namespace fathom {
namespace {

double BytesPerWeight(const ScaleGroups& scales) {
  if (scales.type == ScaleType::kNone) return 0;
  const double bytes = scales.type == ScaleType::kF32 ? sizeof(float) : sizeof(uint8_t);
  return bytes / static_cast<double>(scales.rows.size * scales.cols.size);
}

}  // namespace

double WeightFormat::bytes_per_weight() const {
  return static_cast<double>(BitsOf(values)) / 8 + BytesPerWeight(scales) +
         BytesPerWeight(outer_scales);
}

std::string_view Name(WeightType type) {
  switch (type) {
    case WeightType::kF32: return "fp32";
    case WeightType::kF16: return "fp16";
    case WeightType::kBF16: return "bf16";
    case WeightType::kE4M3: return "fp8";
    case WeightType::kInt8: return "int8";
    case WeightType::kInt4: return "int4";
  }
  CHECK(false, "an unknown type of weights");
}

WeightFormat FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kF32: return WeightFormat::kF32;
    case DType::kF16: return WeightFormat::kF16;
    case DType::kBF16: return WeightFormat::kBF16;
    case DType::kF8E4M3: return WeightFormat::kFp8;
    default: CHECK(false, "weights of {}", Name(dtype));
  }
}

}  // namespace fathom
