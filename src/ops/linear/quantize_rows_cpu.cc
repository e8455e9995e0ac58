// Online quantisation of activations to E4M3.
//   formula:       s = max(max|x|, 1e-10) / 448; value = E4M3(x / s), kept as fp32
//   data mapping:  a thread takes runs of 128 channels; lanes are channels
//   bytes, FLOPs:  reads and writes 4 bytes a channel; about 12 operations a channel
//   accumulator:   none (a maximum)
//   expected time: 7168 channels: some microseconds on one core; not measured
#include "ops/linear/quantize_rows_cpu.h"

#include "cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/quantize_rows_cpu.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The nearest E4M3 value, ties to even, as ToE4M3 rounds.
template <class D, class V>
HWY_INLINE V RoundToE4M3(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  const V magnitude = hn::Min(hn::Abs(x), hn::Set(d, kE4M3Max));
  // With 2^20 times the value's power of two added, the last bit of the sum is the last of its
  // three mantissa bits (of 2^-6's below the normal numbers).
  const auto power = hn::And(hn::BitCast(du, magnitude), hn::Set(du, 0x7f800000u));
  const auto bounded = hn::Max(power, hn::BitCast(du, hn::Set(d, 0x1p-6f)));
  const V shift = hn::BitCast(d, hn::Add(bounded, hn::Set(du, 20u << 23)));
  const V rounded = hn::Sub(hn::Add(magnitude, shift), shift);
  return hn::IfThenElse(hn::IsNaN(x), x, hn::CopySign(rounded, x));
}

float QuantizeOneRun(const float* x, int64_t n, bool ue8m0, float* to) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (n % lanes != 0) {
    uint8_t codes[kScaleTile];
    const float scale = QuantizeRun({x, static_cast<size_t>(n)}, ue8m0, codes);
    for (int64_t i = 0; i < n; ++i) to[i] = kE4M3Values[codes[i]];
    return scale;
  }
  auto largest = hn::Set(d, 1e-10f);
  auto nan = hn::Zero(d);  // turns and stays NaN with the first
  for (int64_t i = 0; i < n; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    largest = hn::Max(largest, hn::Abs(v));
    nan = hn::IfThenElse(hn::IsNaN(v), v, nan);
  }
  float scale = hn::GetLane(hn::MaxOfLanes(d, largest)) / kE4M3Max;
  if (!hn::AllFalse(d, hn::IsNaN(nan))) scale = NAN;
  if (ue8m0) scale = RoundUpToPowerOfTwo(scale);
  const auto divisor = hn::Set(d, scale);
  for (int64_t i = 0; i < n; i += lanes) {
    hn::StoreU(RoundToE4M3(d, hn::Div(hn::LoadU(d, x + i), divisor)), d, to + i);
  }
  return scale;
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {

HWY_EXPORT(QuantizeOneRun);

QuantizedRows::QuantizedRows(Arena& arena, const CpuWeight& w, int64_t capacity)
    : values(arena.Allocate(DType::kF32, {w.runs(), capacity, kScaleTile})),
      scales(arena.Allocate(DType::kF32, {w.runs(), capacity})) {}

ActivationRows QuantizedRows::rows() const {
  return {.values = values.As<float>(),
          .run_stride = values.stride(0),
          .row_stride = kScaleTile,
          .scales = scales.As<float>(),
          .scale_stride = scales.stride(0)};
}

void QuantizeRows(ThreadPool& pool, const CpuWeight& w, const float* x, int64_t row_stride,
                  int64_t rows, const QuantizedRows& to) {
  const auto quantize = HWY_DYNAMIC_DISPATCH(QuantizeOneRun);
  const int64_t runs = w.runs();
  constexpr int64_t kRunsAtATime = 64;
  pool.ParallelFor(rows * runs, kRunsAtATime, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / runs, run = i % runs;
      to.scales.Row<float>(run)[row] =
          quantize(x + row * row_stride + w.run_begin(run), w.run_end(run) - w.run_begin(run),
                   w.scale_ue8m0, to.values.Row<float>(run) + row * kScaleTile);
    }
  });
}

}  // namespace fathom
#endif  // HWY_ONCE
