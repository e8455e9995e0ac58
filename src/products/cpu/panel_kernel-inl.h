// The inner loop of products with panels, for each of Highway's targets.
#if defined(FATHOM_PRODUCTS_CPU_PANEL_KERNEL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_PRODUCTS_CPU_PANEL_KERNEL_INL_H
#undef FATHOM_PRODUCTS_CPU_PANEL_KERNEL_INL_H
#else
#define FATHOM_PRODUCTS_CPU_PANEL_KERNEL_INL_H
#endif

#include <hwy/highway.h>

#include "products/cpu/cpu_weight.h"
#include "tensor/dtype.h"

// Before a loop over registers. One lane has none to spare, and would only take long to compile.
#undef FATHOM_UNROLL
#if HWY_TARGET == HWY_SCALAR
#define FATHOM_UNROLL _Pragma("GCC unroll 1")
#else
#define FATHOM_UNROLL _Pragma("GCC unroll 64")
#endif

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
constexpr int kVectors = static_cast<int>(kPanel) / kLanes;  // of a panel
// Tokens (in attention, heads) that share a pass over a tile, as many as registers hold sums for.
constexpr int kMaxAtOnce = kLanes == 16 ? 12 : kLanes == 8 ? 2 : 1;

// kLanes values as fp32.
HWY_INLINE VF LoadFloats(const float* p) {
  return hn::LoadU(DF(), p);
}
HWY_INLINE VF LoadFloats(const BF16* p) {
  const hn::Rebind<uint16_t, DF> d16;
  const hn::RebindToUnsigned<DF> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}
HWY_INLINE VF LoadFloats(const F16* p) {
  const hn::Rebind<hwy::float16_t, DF> half;
  return hn::PromoteTo(DF(), hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(p)));
}
// Times 2^-8: seen as binary16, an E4M3 number whose exponent is moved to that place is just that,
// subnormals included. (NaN codes would become numbers: weights have none.)
HWY_INLINE VF LoadFloats(const E4M3* p) {
  const hn::Rebind<int8_t, DF> d8;
  const hn::Rebind<int16_t, DF> d16;
  const hn::Rebind<hwy::float16_t, DF> half;
  const auto codes = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p)));
  // The sign was extended to bits 7..15, so that it is at 14 and 15 now.
  const auto bits = hn::And(hn::ShiftLeft<7>(codes), hn::Set(d16, static_cast<int16_t>(0xBFFF)));
  return hn::PromoteTo(DF(), hn::BitCast(half, bits));
}

// Holds a vector in a register: GCC would load it again for each product it is an operand of.
HWY_INLINE void Keep(VF& v) {
#if defined(__x86_64__) && HWY_TARGET != HWY_SCALAR
  asm("" : "+v"(v.raw));
#else
  (void)v;
#endif
}

// What lies apart in memory, in elements.
struct Strides {
  int64_t w;       // channels of a panel
  int64_t panels;  // neighbouring panels
  int64_t x;       // tokens of x
};

// sum[r][c] += over k in order of x[r][k] * w[k][c], where the kVectors columns of a panel follow
// each other.
template <int kTokens, int kPanels, class W>
HWY_INLINE void Accumulate(const W* w, const float* x, const Strides& strides, int64_t count,
                           VF (&sum)[kTokens][kPanels * kVectors]) {
  const DF d;
  constexpr int kColumns = kPanels * kVectors;
  for (int64_t k = 0; k < count; ++k) {
    VF column[kColumns];
    FATHOM_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      column[c] = LoadFloats(w + (c / kVectors) * strides.panels + (c % kVectors) * kLanes);
      Keep(column[c]);
    }
    FATHOM_UNROLL
    for (int r = 0; r < kTokens; ++r) {
      VF value = hn::Set(d, x[r * strides.x + k]);
      Keep(value);
      FATHOM_UNROLL
      for (int c = 0; c < kColumns; ++c) sum[r][c] = hn::MulAdd(value, column[c], sum[r][c]);
    }
    w += strides.w;
  }
}

template <int kTokens, int kColumns>
HWY_INLINE void SetZero(VF (&sum)[kTokens][kColumns]) {
  FATHOM_UNROLL
  for (int r = 0; r < kTokens; ++r) {
    FATHOM_UNROLL
    for (int c = 0; c < kColumns; ++c) sum[r][c] = hn::Zero(DF());
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#endif  // include guard
