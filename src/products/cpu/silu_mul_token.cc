// The gate of a gated MLP, for one token.
//   formula:       out = gate / (1 + exp(-gate)) * up
//   data mapping:  lanes are channels
//   bytes, FLOPs:  reads 8 and writes 4 bytes a channel; about 20 operations
//   accumulator:   none
//   expected time: [1, 2 x 18432]: some microseconds on one core; not measured
#include "products/cpu/silu_mul_token.h"

#include <cstring>

#include "cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "products/cpu/silu_mul_token.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

template <class D>
HWY_INLINE void SiluMulVector(D d, const float* gate, const float* up, float* out) {
  const auto g = hn::LoadU(d, gate);
  const auto sigmoid_inverse = hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Neg(g)));
  hn::StoreU(hn::Mul(hn::Div(g, sigmoid_inverse), hn::LoadU(d, up)), d, out);
}

void SiluMulLanes(const float* gate, const float* up, int64_t n, float* out) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(d));
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) SiluMulVector(d, gate + i, up + i, out + i);
  if (i == n) return;
  float last_gate[kLanes] = {}, last_up[kLanes] = {}, last_out[kLanes];
  const size_t bytes = static_cast<size_t>(n - i) * sizeof(float);
  std::memcpy(last_gate, gate + i, bytes);
  std::memcpy(last_up, up + i, bytes);
  SiluMulVector(d, last_gate, last_up, last_out);
  std::memcpy(out + i, last_out, bytes);
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {

HWY_EXPORT(SiluMulLanes);

void SiluMulToken(const float* gate, const float* up, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(SiluMulLanes)(gate, up, n, out);
}

}  // namespace fathom
#endif  // HWY_ONCE
