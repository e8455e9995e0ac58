// Dot products of several vectors with several others, for each of Highway's targets.
#if defined(FATHOM_PRODUCTS_CPU_DOT_KERNEL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef FATHOM_PRODUCTS_CPU_DOT_KERNEL_INL_H
#undef FATHOM_PRODUCTS_CPU_DOT_KERNEL_INL_H
#else
#define FATHOM_PRODUCTS_CPU_DOT_KERNEL_INL_H
#endif

#include <hwy/cache_control.h>

#include "products/cpu/panel_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

// As many dot products at a time as registers hold sums for.
constexpr int kDotTokens = kLanes == 16 ? 4 : kLanes == 8 ? 2 : 1;
constexpr int kDotColumns = kLanes == 1 ? 1 : 4;

// The n < kLanes numbers at p, then zeros.
template <class T>
HWY_INLINE VF LoadFew(const T* p, int64_t n) {
  T few[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) few[i] = p[i];
  return LoadFloats(few);
}

template <int kLefts, int kRights>
HWY_INLINE void AddOuterProduct(const VF (&left)[kLefts], const VF (&right)[kRights],
                                VF (&sum)[kLefts][kRights]) {
  FATHOM_UNROLL
  for (int r = 0; r < kLefts; ++r) {
    FATHOM_UNROLL
    for (int c = 0; c < kRights; ++c) sum[r][c] = hn::MulAdd(left[r], right[c], sum[r][c]);
  }
}

// sum[r][c] += a[r * a_stride + ...] * b[c * b_stride + ...] lane by lane over n numbers. The sum
// of a pair's lanes does not depend on which pairs go together.
template <int kLefts, int kRights, class T>
HWY_INLINE void AddProducts(const float* a, int64_t a_stride, const T* b, int64_t b_stride,
                            int64_t n, VF (&sum)[kLefts][kRights]) {
  VF left[kLefts], right[kRights];
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    FATHOM_UNROLL
    for (int r = 0; r < kLefts; ++r) {
      left[r] = LoadFloats(a + r * a_stride + i);
      Keep(left[r]);
    }
    FATHOM_UNROLL
    for (int c = 0; c < kRights; ++c) {
      // What follows: the next call's, in order of address, which the hardware then runs ahead of.
      hwy::Prefetch(b + kRights * (b_stride + i) + c * kLanes);
      right[c] = LoadFloats(b + c * b_stride + i);
      Keep(right[c]);
    }
    AddOuterProduct(left, right, sum);
  }
  if (i == n) return;
  FATHOM_UNROLL
  for (int r = 0; r < kLefts; ++r) left[r] = LoadFew(a + r * a_stride + i, n - i);
  FATHOM_UNROLL
  for (int c = 0; c < kRights; ++c) right[c] = LoadFew(b + c * b_stride + i, n - i);
  AddOuterProduct(left, right, sum);
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#endif  // include guard
