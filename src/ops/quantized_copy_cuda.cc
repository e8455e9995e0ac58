#include "ops/quantized_copy_cuda.h"

namespace fathom {

bool HasCodes(const QuantizedCopy& copy) {
  // Wider vectors (o of 128 heads) are quantised by their product.
  constexpr int64_t kWidest = 8192;
  const int64_t width = copy.absent() ? 0 : copy.codes.dim(1);
  return width > 0 && width <= kWidest && width % 16 == 0;
}

QuantizedOut QuantizedOutOf(const QuantizedCopy& copy) {
  if (!HasCodes(copy)) return {};
  return {static_cast<uint8_t*>(copy.codes.data()), static_cast<float*>(copy.scales.data()),
          copy.scales.stride(0), copy.scale_ue8m0};
}

Fp8Tokens Fp8TokensOf(const QuantizedCopy& copy) {
  return {.codes = static_cast<const uint8_t*>(copy.codes.data()),
          .scales = static_cast<const float*>(copy.scales.data()),
          .capacity = copy.codes.dim(0),
          .channels = copy.codes.dim(1),
          .scale_pitch = copy.scales.stride(0)};
}

QuantizedOut TakeQuantized(Arena& arena, int64_t tokens, const PackedWeight& reader) {
  const int64_t runs = (reader.in + kScaleTile - 1) / kScaleTile, pitch = Fp8ScalePitch(tokens);
  uint8_t* codes = arena.Take<uint8_t>(tokens * reader.in);
  return {.codes = codes,
          .scales = arena.Take<float>(runs * pitch),
          .scale_pitch = pitch,
          .scale_ue8m0 = reader.scale_ue8m0};
}

Fp8Tokens Fp8TokensOf(const QuantizedOut& out, int64_t tokens, const PackedWeight& reader) {
  return {.codes = out.codes,
          .scales = out.scales,
          .capacity = tokens,
          .channels = reader.in,
          .scale_pitch = out.scale_pitch};
}

}  // namespace fathom
