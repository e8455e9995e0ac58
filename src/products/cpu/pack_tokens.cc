// Packs activations for products with panels.
//   formula:       kE4M3: s = max(max|x|, 1e-10) / 448, value = E4M3(x / s);
//                  kInt8: s = max|x| / 127, code = round(x / s);
//                  kBF16: BF16(x); kSplit: high = BF16(x), low = BF16(x - high)
//   data mapping:  a thread takes runs of 128 channels; lanes are channels
//   bytes, FLOPs:  reads 4 bytes a channel, writes 1 to 4; about 12 operations a channel
//   accumulator:   none (a maximum; an integer sum)
//   expected time: 7168 channels: some microseconds on one core; not measured
#include "products/cpu/pack_tokens.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "products/cpu/pack_tokens.cc"
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

// The nearest BF16 number, ties to even, as fp32.
template <class D, class V>
HWY_INLINE V RoundToBF16(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto up = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const V rounded = hn::BitCast(d, hn::And(up, hn::Set(du, 0xffff0000u)));
  return hn::IfThenElse(hn::IsNaN(x), x, rounded);
}

// BF16 numbers held as fp32, as their upper halves.
template <class D, class V>
HWY_INLINE void StoreBF16(D d, V x, BF16* to) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  // NaN keeps its upper half only: a bit set there keeps it NaN.
  const auto quiet = hn::IfThenElse(hn::IsNaN(x), hn::BitCast(d, hn::Set(du, 0x7fc00000u)), x);
  const auto half = hn::TruncateTo(d16, hn::ShiftRight<16>(hn::BitCast(du, quiet)));
  hn::StoreU(half, d16, reinterpret_cast<uint16_t*>(to));
}

// The largest magnitude of x[0, n), at least `least`; NaN if one is NaN. n is a multiple of Lanes.
HWY_INLINE float LargestMagnitude(const float* x, int64_t n, float least) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto largest = hn::Set(d, least);
  auto nan = hn::Zero(d);  // turns and stays NaN with the first
  for (int64_t i = 0; i < n; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    largest = hn::Max(largest, hn::Abs(v));
    nan = hn::IfThenElse(hn::IsNaN(v), v, nan);
  }
  if (!hn::AllFalse(d, hn::IsNaN(nan))) return NAN;
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// Calls body(i, x[i...]) for each vector of the run.
template <class Body>
HWY_INLINE void ForEachVector(const float* x, const Body& body) {
  const hn::ScalableTag<float> d;
  for (int64_t i = 0; i < kScaleTile; i += static_cast<int64_t>(hn::Lanes(d))) {
    body(i, hn::LoadU(d, x + i));
  }
}

float PackE4M3(const float* x, bool ue8m0, bool dots, std::byte* to) {
  const hn::ScalableTag<float> d;
  float scale = LargestMagnitude(x, kScaleTile, 1e-10f) / kE4M3Max;
  if (ue8m0) scale = RoundUpToPowerOfTwo(scale);
  const auto divisor = hn::Set(d, scale);
  ForEachVector(x, [&](int64_t i, auto v) {
    const auto value = RoundToE4M3(d, hn::Div(v, divisor));
    if (dots) {
      StoreBF16(d, value, reinterpret_cast<BF16*>(to) + i);
    } else {
      hn::StoreU(value, d, reinterpret_cast<float*>(to) + i);
    }
  });
  return scale;
}

float PackInt8(const float* x, bool dots, std::byte* to, int32_t* offset,
               int32_t* sub_run_offsets) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const float largest = LargestMagnitude(x, kScaleTile, 0.0f);
  // Not finite: so is the scale. Too small for a reciprocal: as good as zeros.
  const float inverse = largest > 1e-30f && largest < INFINITY ? 127.0f / largest : 0.0f;
  const auto factor = hn::Set(d, inverse);
  auto sum = hn::Zero(di);
  *offset = 0;
  ForEachVector(x, [&](int64_t i, auto v) {
    const auto scaled = hn::Mul(v, factor);
    const auto code = hn::NearestInt(hn::IfThenElse(hn::IsNaN(scaled), hn::Zero(d), scaled));
    sum = hn::Add(sum, code);
    if ((i + static_cast<int64_t>(hn::Lanes(d))) % kSubRun == 0) {
      const int32_t of_sub_run = hn::GetLane(hn::SumOfLanes(di, sum));
      sub_run_offsets[i / kSubRun] = -8 * of_sub_run;
      *offset -= 128 * of_sub_run;
      sum = hn::Zero(di);
    }
    if (dots) {
      hn::StoreU(hn::DemoteTo(d8, code), d8, reinterpret_cast<int8_t*>(to) + i);
    } else {
      hn::StoreU(hn::ConvertTo(d, code), d, reinterpret_cast<float*>(to) + i);
    }
  });
  return largest / 127.0f;
}

void PackBF16(const float* x, std::byte* to) {
  const hn::ScalableTag<float> d;
  ForEachVector(x, [&](int64_t i, auto v) {
    StoreBF16(d, RoundToBF16(d, v), reinterpret_cast<BF16*>(to) + i);
  });
}

void PackSplit(const float* x, std::byte* to) {
  const hn::ScalableTag<float> d;
  BF16* high = reinterpret_cast<BF16*>(to);
  ForEachVector(x, [&](int64_t i, auto v) {
    const auto rounded = RoundToBF16(d, v);
    StoreBF16(d, rounded, high + i);
    StoreBF16(d, RoundToBF16(d, hn::Sub(v, rounded)), high + kScaleTile + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {

HWY_EXPORT(PackE4M3);
HWY_EXPORT(PackInt8);
HWY_EXPORT(PackBF16);
HWY_EXPORT(PackSplit);

namespace {

int64_t RecordBytes(const CpuWeight& w) {
  switch (w.activations) {
    case ActivationForm::kPlain: return 0;
    case ActivationForm::kBF16: return kScaleTile * static_cast<int64_t>(sizeof(BF16));
    case ActivationForm::kSplit: return 2 * kScaleTile * static_cast<int64_t>(sizeof(BF16));
    case ActivationForm::kE4M3: return kScaleTile * (w.dots ? sizeof(BF16) : sizeof(float));
    case ActivationForm::kInt8: return kScaleTile * (w.dots ? sizeof(int8_t) : sizeof(float));
  }
  return 0;
}

}  // namespace

PackedTokens::PackedTokens(Arena& arena, const CpuWeight& w, int64_t capacity) {
  const ActivationForm form = w.activations;
  if (form == ActivationForm::kPlain) return;
  values = arena.Allocate(DType::kU8, {w.runs(), capacity, RecordBytes(w)});
  if (form == ActivationForm::kBF16 || form == ActivationForm::kSplit) return;
  scales = arena.Allocate(DType::kF32, {w.runs(), capacity});
  const int64_t integers = form == ActivationForm::kInt8 ? capacity : 0;
  offsets = arena.Allocate(DType::kI32, {w.runs(), integers});
  sub_run_offsets = arena.Allocate(DType::kI32, {w.runs(), integers, kSubRuns});
}

TokenActivations PackedTokens::Pack(ThreadPool& pool, const CpuWeight& w, const TokenSource& from,
                                    int64_t vectors) const {
  const ActivationForm form = w.activations;
  if (form == ActivationForm::kPlain) {
    CHECK(from.heads == 1, "vectors of several heads do not lie evenly");
    return PlainTokens(w, from.x, from.token_stride);
  }
  const auto e4m3 = HWY_DYNAMIC_DISPATCH(PackE4M3);
  const auto int8 = HWY_DYNAMIC_DISPATCH(PackInt8);
  const auto bf16 = HWY_DYNAMIC_DISPATCH(PackBF16);
  const auto split = HWY_DYNAMIC_DISPATCH(PackSplit);
  const int64_t runs = w.runs(), tokens = vectors / from.heads;
  constexpr int64_t kRunsAtATime = 64;
  pool.ParallelFor(vectors * runs, kRunsAtATime, [&](int64_t begin, int64_t end, int) {
    float padded[kScaleTile];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t vector = i / runs, run = i % runs, n = w.run_end(run) - w.run_begin(run);
      const float* x = from.x + vector / tokens * from.head_stride +
                       vector % tokens * from.token_stride + w.run_begin(run);
      if (n < kScaleTile) {
        std::memcpy(padded, x, static_cast<size_t>(n) * sizeof(float));
        std::fill(padded + n, padded + kScaleTile, 0.0f);
        x = padded;
      }
      std::byte* to = values.As<std::byte>() + run * values.stride(0) + vector * values.stride(1);
      switch (form) {
        case ActivationForm::kPlain: break;
        case ActivationForm::kBF16: bf16(x, to); break;
        case ActivationForm::kSplit: split(x, to); break;
        case ActivationForm::kE4M3:
          scales.As<float>(run)[vector] = e4m3(x, w.scale_ue8m0, w.dots != nullptr, to);
          break;
        case ActivationForm::kInt8:
          scales.As<float>(run)[vector] =
              int8(x, w.dots != nullptr, to, offsets.As<int32_t>(run) + vector,
                   sub_run_offsets.As<int32_t>(run) + vector * kSubRuns);
          break;
      }
    }
  });
  const bool scaled = form == ActivationForm::kE4M3 || form == ActivationForm::kInt8;
  return {
      .values = values.As<std::byte>(),
      .run_stride = values.stride(0),
      .token_stride = values.stride(1),
      .record_bytes = values.stride(1),
      .scales = scaled ? scales.As<float>() : nullptr,
      .offsets = form == ActivationForm::kInt8 ? offsets.As<int32_t>() : nullptr,
      .sub_run_offsets = form == ActivationForm::kInt8 ? sub_run_offsets.As<int32_t>() : nullptr,
      .scale_stride = scaled ? scales.stride(0) : 0};
}

}  // namespace fathom
#endif  // HWY_ONCE
