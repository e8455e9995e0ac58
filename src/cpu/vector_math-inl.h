// Functions on vectors, for each of Highway's targets.
#if defined(FATHOM_CPU_VECTOR_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_CPU_VECTOR_MATH_INL_H
#undef FATHOM_CPU_VECTOR_MATH_INL_H
#else
#define FATHOM_CPU_VECTOR_MATH_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// e^x in fp32, within 2 units in the last place where the result is a normal number; 0 and infinity
// beyond the range, NaN for NaN. x = n ln 2 + r with |r| <= ln(2) / 2, where the Taylor series up
// to r^7 leaves out less than 6e-9 of e^r.
template <class D, class V>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V bounded = hn::Min(hn::Max(x, hn::Set(d, -104.0f)), hn::Set(d, 89.0f));
  const auto n = hn::NearestInt(hn::Mul(bounded, hn::Set(d, 1.44269504f)));
  const V whole = hn::ConvertTo(d, n);
  // ln 2 in two parts, of which n times the first is exact.
  V r = hn::NegMulAdd(whole, hn::Set(d, 0.693359375f), bounded);
  r = hn::NegMulAdd(whole, hn::Set(d, -2.12194440e-4f), r);
  V p = hn::Set(d, 1.0f / 5040);
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 720));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 120));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 24));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 6));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::MulAdd(hn::Mul(p, r), r, r);
  p = hn::Add(p, hn::Set(d, 1.0f));
  // 2^n in two factors, since n reaches beyond the exponents of fp32.
  const auto bias = hn::Set(di, 127);
  const auto half = hn::ShiftRight<1>(n);
  const V first = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const V second = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(n, half), bias)));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Mul(hn::Mul(p, first), second));
}

struct SoftmaxSums {
  float max, sum;
};

// Scores to weights exp(s - max) in place, where max is the largest of them and `max`; n: whole
// vectors. A score that is NaN is passed over in max, and makes the sum NaN.
HWY_INLINE SoftmaxSums Exponentiate(float* scores, int64_t n, float max) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto largest = hn::Set(d, max);
  for (int64_t i = 0; i < n; i += lanes) {
    const auto s = hn::LoadU(d, scores + i);
    largest = hn::IfThenElse(hn::Gt(s, largest), s, largest);
  }
  largest = hn::MaxOfLanes(d, largest);
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < n; i += lanes) {
    const auto weight = Exp(d, hn::Sub(hn::LoadU(d, scores + i), largest));
    hn::StoreU(weight, d, scores + i);
    sum = hn::Add(sum, weight);
  }
  return {hn::GetLane(largest), hn::GetLane(hn::SumOfLanes(d, sum))};
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#endif  // include guard
