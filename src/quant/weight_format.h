// How the numbers of a matrix are stored, as a value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "tensor/dtype.h"

namespace fathom {

enum class WeightType : uint8_t { kF32, kF16, kBF16, kE4M3, kInt8, kInt4 };

// Elements of one dimension in groups of `size` that follow each other. The matrix may have been
// cut out of a larger one, and begin and end inside a group. REQUIRES: size > 0, for any question.
struct Groups {
  int64_t size = 0;
  int64_t offset = 0;  // where element 0 lies inside the first group: [0, size)

  constexpr int64_t Of(int64_t element) const { return (offset + element) / size; }
  // Of n elements: how many groups they touch, and which elements [Begin, End) are group g's.
  constexpr int64_t Count(int64_t n) const { return (offset + n + size - 1) / size; }
  constexpr int64_t Begin(int64_t g) const { return g == 0 ? 0 : g * size - offset; }
  constexpr int64_t End(int64_t g, int64_t n) const { return std::min(n, (g + 1) * size - offset); }

  friend bool operator==(const Groups&, const Groups&) = default;
};

enum class ScaleType : uint8_t { kNone, kF32, kU8 };

// One scale for each group of rows and group of columns.
struct ScaleGroups {
  ScaleType type = ScaleType::kNone;
  Groups rows, cols;

  friend bool operator==(const ScaleGroups&, const ScaleGroups&) = default;
};

// A weight is (value - zero) * its scale * its outer scale; what is absent counts as 1. Each format
// is a row of the table below; a new one (AWQ, GPTQ, NVFP4) is a new row, with the types that it
// brings. What a product makes of the activations is not said here but in PackedWeight.
struct WeightFormat {
  WeightType values = WeightType::kBF16;
  ScaleGroups scales;
  ScaleGroups outer_scales;  // of the scales, where these have little precision themselves
  int32_t zero = 0;          // the code that means zero

  // Memory that a weight takes, with its share of the scales.
  double bytes_per_weight() const;

  friend bool operator==(const WeightFormat&, const WeightFormat&) = default;

  static const WeightFormat kF32, kF16, kBF16;
  static const WeightFormat kFp8;   // DeepSeek's: E4M3, and an fp32 scale per 128x128 tile
  static const WeightFormat kInt8;  // made at load: codes in [1, 255], a scale per 128 channels
  // Made at load: codes in [0, 15], per 32 channels a multiplier in [1, 15], and a scale per 128.
  static const WeightFormat kInt4;
};

inline constexpr WeightFormat WeightFormat::kF32 = {.values = WeightType::kF32};
inline constexpr WeightFormat WeightFormat::kF16 = {.values = WeightType::kF16};
inline constexpr WeightFormat WeightFormat::kBF16 = {.values = WeightType::kBF16};
inline constexpr WeightFormat WeightFormat::kFp8 = {
    .values = WeightType::kE4M3, .scales = {ScaleType::kF32, {.size = 128}, {.size = 128}}};
inline constexpr WeightFormat WeightFormat::kInt8 = {
    .values = WeightType::kInt8,
    .scales = {ScaleType::kF32, {.size = 1}, {.size = 128}},
    .zero = 128};
inline constexpr WeightFormat WeightFormat::kInt4 = {
    .values = WeightType::kInt4,
    .scales = {ScaleType::kU8, {.size = 1}, {.size = 32}},
    .outer_scales = {ScaleType::kF32, {.size = 1}, {.size = 128}},
    .zero = 8};

constexpr int64_t BitsOf(WeightType type) {
  switch (type) {
    case WeightType::kF32: return 32;
    case WeightType::kF16:
    case WeightType::kBF16: return 16;
    case WeightType::kE4M3:
    case WeightType::kInt8: return 8;
    case WeightType::kInt4: return 4;
  }
  return 0;
}
std::string_view Name(WeightType type);  // "fp8"

// The format of matrices of this type in a checkpoint. REQUIRES: a floating point type or E4M3.
WeightFormat FormatOf(DType dtype);

}  // namespace fathom
