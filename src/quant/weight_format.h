// How the numbers of a matrix are stored, as a value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace fathom {

enum class WeightType : uint8_t { kF32, kF16, kBF16, kE4M3, kInt8, kInt4 };

// Elements of one dimension in groups of `size` that follow each other. The matrix may have been
// cut out of a larger one, and begin and end inside a group. REQUIRES: size > 0, for any question.
struct Groups {
  static constexpr int64_t kAll = int64_t{1} << 40;  // a size beyond every dimension: one group

  int64_t size = 0;
  int64_t offset = 0;  // where element 0 lies inside the first group: [0, size)

  constexpr int64_t Of(int64_t element) const { return (offset + element) / size; }
  // Of n elements: how many groups they touch, and which elements [Begin, End) are group g's.
  constexpr int64_t Count(int64_t n) const { return (offset + n + size - 1) / size; }
  constexpr int64_t Begin(int64_t g) const { return g == 0 ? 0 : g * size - offset; }
  constexpr int64_t End(int64_t g, int64_t n) const { return std::min(n, (g + 1) * size - offset); }

  friend bool operator==(const Groups&, const Groups&) = default;
};

enum class ScaleType : uint8_t { kNone, kF32, kU4 };

// One scale for each group of outputs and group of input channels.
struct ScaleGroups {
  ScaleType type = ScaleType::kNone;
  Groups outputs, channels;

  friend bool operator==(const ScaleGroups&, const ScaleGroups&) = default;
};

enum class ZeroPoints : uint8_t {
  kNone,      // numbers of a type that has a zero
  kOneCode,   // WeightFormat::zero
  kPerGroup,  // a code for each group of the scales, stored in as many bits as a value
};

// A weight is (value - zero) * its scale * its outer scale; what is absent counts as 1. Each format
// is an entry of the table below; a new one (AWQ, GPTQ, NVFP4) is a new entry, with the types that
// it brings. What a product makes of the activations is not said here but in PackedWeight.
struct WeightFormat {
  WeightType values = WeightType::kBF16;
  ScaleGroups scales;
  ScaleGroups outer_scales;  // of the scales, where these have little precision themselves
  ZeroPoints zero_points = ZeroPoints::kNone;
  int32_t zero = 0;  // the code that means zero, if it is one for all
  // Channels take their groups in an order that the matrix brings along (GPTQ's act-order).
  bool permuted_channels = false;

  // Memory that a weight takes, with its share of scales and zero points. The order of permuted
  // channels is not in it: it is one for all outputs.
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
    .zero_points = ZeroPoints::kOneCode,
    .zero = 128};
inline constexpr WeightFormat WeightFormat::kInt4 = {
    .values = WeightType::kInt4,
    .scales = {ScaleType::kU4, {.size = 1}, {.size = 32}},
    .outer_scales = {ScaleType::kF32, {.size = 1}, {.size = 128}},
    .zero_points = ZeroPoints::kOneCode,
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
// How a matrix is stored, for errors: "int4, scales per 1 x 128, zero points per group".
std::string Describe(const WeightFormat& format);

// The format of matrices of this type in a checkpoint. REQUIRES: a floating point type or E4M3.
WeightFormat FormatOf(DType dtype);
// Whether it is the format of such a matrix, or of a part of one: what Dequantize reads.
bool IsStoredFormat(const WeightFormat& format);

}  // namespace fathom
