// Element types, and the conversions that every folder needs.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fathom {

enum class DType : uint8_t { kF32, kF16, kBF16, kF8E4M3, kI32, kI64, kU8 };

std::string_view Name(DType dtype);  // as in safetensors: "F32", "BF16", "F8_E4M3", ...
constexpr size_t ByteSize(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kI64: return 8;
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kF8E4M3:
    case DType::kU8: return 1;
  }
  return 0;
}

// bfloat16: the upper half of a float.
struct BF16 {
  uint16_t bits = 0;
};
inline float ToFloat(BF16 x) {
  return std::bit_cast<float>(uint32_t{x.bits} << 16);
}
// Rounds to nearest, ties to even; NaN stays NaN.
inline BF16 ToBF16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

// IEEE 754 binary16.
struct F16 {
  uint16_t bits = 0;
};
float ToFloat(F16 x);

// The DType of a C++ element type.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<F16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<BF16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};

}  // namespace fathom
