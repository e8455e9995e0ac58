#include "quant/weight_format.h"

#include <fmt/format.h>

#include "base/check.h"

namespace fathom {
namespace {

double WeightsPerScale(const ScaleGroups& scales) {
  return static_cast<double>(scales.outputs.size) * static_cast<double>(scales.channels.size);
}

double BytesPerWeight(const ScaleGroups& scales) {
  if (scales.type == ScaleType::kNone) return 0;
  const double bytes = scales.type == ScaleType::kF32 ? sizeof(float) : 0.5;
  return bytes / WeightsPerScale(scales);
}

std::string Describe(std::string_view what, const ScaleGroups& scales) {
  if (scales.type == ScaleType::kNone) return "";
  const auto size = [](const Groups& groups) {
    return groups.size == Groups::kAll ? "all" : std::to_string(groups.size);
  };
  return fmt::format(", {} per {} x {}", what, size(scales.outputs), size(scales.channels));
}

}  // namespace

double WeightFormat::bytes_per_weight() const {
  const double value_bytes = static_cast<double>(BitsOf(values)) / 8;
  const double zero_bytes =
      zero_points == ZeroPoints::kPerGroup ? value_bytes / WeightsPerScale(scales) : 0;
  return value_bytes + BytesPerWeight(scales) + BytesPerWeight(outer_scales) + zero_bytes;
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

std::string Describe(const WeightFormat& format) {
  std::string text = std::string(Name(format.values)) + Describe("scales", format.scales) +
                     Describe("outer scales", format.outer_scales);
  if (format.zero_points == ZeroPoints::kOneCode) text += fmt::format(", zero {}", format.zero);
  if (format.zero_points == ZeroPoints::kPerGroup) text += ", zero points per group";
  if (format.permuted_channels) text += ", permuted channels";
  return text;
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

bool IsStoredFormat(const WeightFormat& format) {
  WeightFormat whole = format;
  whole.scales.outputs.offset = whole.scales.channels.offset = 0;
  return whole == WeightFormat::kF32 || whole == WeightFormat::kF16 ||
         whole == WeightFormat::kBF16 || whole == WeightFormat::kFp8;
}

}  // namespace fathom
