// Products of BF16 activations, or pairs of them, with BF16 and FP8 weights, by AVX512_BF16; and of
// one token beside AMX (MultiplyAsAmx).
//   formula:       acc += sx sw sum over channels of (high + low) w; an x that is rounded or
//                  quantised has no low part
//   data mapping:  16 lanes are outputs, two channels a lane; up to 12 tokens share a pass over a
//                  run of 32 outputs; FP8 codes are widened in registers, or into L1 for many
//                  tokens
//   bytes, FLOPs:  each weight byte is read once per 128 tokens; 2 FLOPs a weight, token and part
//                  of x
//   accumulator:   fp32 within a run, pair by pair of channels, the parts apart (MultiplyAsAmx: as
//                  AMX); then over runs
//   expected time: one token: its bytes at read bandwidth; many: vdpbf16ps once a cycle (Zen 4)
#include <algorithm>
#include <bit>
#include <utility>

#include "cpu/amx.h"
#include "products/cpu/fetch_ahead.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace fathom {
namespace {

// FP8 weights are decoded 2^8 times too large, which their scales make up for: the exponent of a
// normal number then only wants its top bit set.
//
// Upper and lower byte of 2^8 times each positive E4M3 number as BF16, which holds them exactly.
struct Fp8Table {
  alignas(64) uint8_t high[128], low[128];
};
constexpr Fp8Table MakeFp8Table() {
  Fp8Table table = {};
  for (uint32_t code = 0; code < 127; ++code) {
    const uint32_t exponent = code >> 3, mantissa = code & 7;
    const float value = exponent == 0
                            ? static_cast<float>(mantissa) * 0x1p-1f
                            : std::bit_cast<float>(((exponent + 128) << 23) | (mantissa << 20));
    const uint32_t bits = std::bit_cast<uint32_t>(value) >> 16;
    table.high[code] = static_cast<uint8_t>(bits >> 8);
    table.low[code] = static_cast<uint8_t>(bits);
  }
  return table;
}
constexpr Fp8Table kFp8Table = MakeFp8Table();

}  // namespace
}  // namespace fathom

#if defined(__clang__)
#pragma clang attribute push(                                                                \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,fma"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,fma")
// GCC 12's own intrinsics start from values that are undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace fathom {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kPartBytes = kScaleTile * 2;  // of a token's record

inline __m512i Load(const void* p) {
  return _mm512_loadu_si512(p);
}
inline __m512i Pairs(const std::byte* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return _mm512_set1_epi32(pair);
}
// _mm512_dpbf16_ps, for which GCC 12 moves its sums from register to register.
inline void AddDots(__m512i weights, __m512i pairs, __m512& sum) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(pairs));
}

// The first and second pairs of channels of a group, for 16 outputs.
struct GroupPairs {
  __m512i pair[2];
};

struct Bf16Weights {
  static constexpr int64_t kGroupBytes = 4 * kLine;
  static inline Bf16Weights Make() { return {}; }
  inline GroupPairs Half(const std::byte* group, int half) const {
    return {{Load(group + half * kLine), Load(group + (2 + half) * kLine)}};
  }
};

struct Fp8Weights {
  static constexpr int64_t kGroupBytes = 2 * kLine;
  __m512i high[2], low[2], sign, exponent, kept, top;
  // Not a constructor: those that the compiler makes lack these targets.
  static inline Fp8Weights Make() {
    return {{Load(kFp8Table.high), Load(kFp8Table.high + 64)},
            {Load(kFp8Table.low), Load(kFp8Table.low + 64)},
            _mm512_set1_epi8(static_cast<char>(0x80)),
            _mm512_set1_epi8(0x78),
            _mm512_set1_epi16(static_cast<int16_t>(0x87f0)),
            _mm512_set1_epi16(0x4000)};
  }
  inline GroupPairs Half(const std::byte* group, int half) const {
    const __m512i codes = Load(group + half * kLine);
    if (_mm512_testn_epi8_mask(codes, exponent) != 0) [[unlikely]]
      return LookUp(codes);
    return {{Normal(_mm512_unpacklo_epi8(_mm512_setzero_si512(), codes)),
             Normal(_mm512_unpackhi_epi8(_mm512_setzero_si512(), codes))}};
  }
  // Of codes in the upper bytes of words.
  inline __m512i Normal(__m512i codes) const {
    return _mm512_ternarylogic_epi32(_mm512_srai_epi16(codes, 4), kept, top, 0xea);  // a & b | c
  }
  // Subnormal numbers too, but slower: real weights have one in some thousands.
  inline GroupPairs LookUp(__m512i codes) const {
    const __m512i magnitude = _mm512_permutex2var_epi8(high[0], codes, high[1]);
    const __m512i upper = _mm512_ternarylogic_epi32(magnitude, codes, sign, 0xf8);  // a | (b & c)
    const __m512i lower = _mm512_permutex2var_epi8(low[0], codes, low[1]);
    return {{_mm512_unpacklo_epi8(lower, upper), _mm512_unpackhi_epi8(lower, upper)}};
  }
};

// acc[r] += totals[r][half] times their scales.
template <int kTokens, int kParts>
inline void AddScaled(const DotTile& tile, const DotTokens& x, const __m512 (&totals)[kTokens][2],
                      float* acc) {
#pragma GCC unroll 2
  for (int c = 0; c < 2; ++c) {
    __m512 scale = _mm512_set1_ps(1.0f);
    if (tile.scales != nullptr) {
      scale = tile.scale_per_output ? _mm512_loadu_ps(tile.scales + c * 16)
                                    : _mm512_set1_ps(*tile.scales);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kTokens; ++r) {
      float* to = acc + r * kPanel + c * 16;
      __m512 factor = scale;
      if (kParts == 1 && x.scales != nullptr) {
        factor = _mm512_mul_ps(_mm512_set1_ps(x.scales[r]), scale);
      }
      const __m512 term = _mm512_mul_ps(totals[r][c], factor);
      _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), term));
    }
  }
}

// Parts of x are summed apart: twice as many sums hide the instruction's latency of one token.
template <int kTokens, int kParts, class Weights, bool kAhead>
void Multiply(const DotTile& tile, const DotTokens& x, float* acc) {
  const Weights weights = Weights::Make();
  __m512 sum[kTokens][kParts][2];
#pragma GCC unroll 16
  for (int r = 0; r < kTokens; ++r) {
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      sum[r][part][0] = sum[r][part][1] = _mm512_setzero_ps();
    }
  }
  for (int64_t g = 0; g < tile.groups; ++g) {
    const std::byte* group = tile.w + g * Weights::kGroupBytes;
    const GroupPairs w[2] = {weights.Half(group, 0), weights.Half(group, 1)};
#pragma GCC unroll 4
    for (int64_t line = 0; line < Weights::kGroupBytes; line += kLine) {
      FetchAhead<kAhead>(group + line);
    }
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
#pragma GCC unroll 16
      for (int r = 0; r < kTokens; ++r) {
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part) {
          const __m512i pairs =
              Pairs(x.values + (r * kParts + part) * kPartBytes + (2 * g + j) * 4);
          AddDots(w[0].pair[j], pairs, sum[r][part][0]);
          AddDots(w[1].pair[j], pairs, sum[r][part][1]);
        }
      }
    }
  }
  __m512 totals[kTokens][2];
#pragma GCC unroll 16
  for (int r = 0; r < kTokens; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
      totals[r][c] = sum[r][0][c];
      if constexpr (kParts == 2) totals[r][c] = _mm512_add_ps(totals[r][c], sum[r][1][c]);
    }
  }
  AddScaled<kTokens, kParts>(tile, x, totals, acc);
}

// A token as fp32: [kParts][kScaleTile].
template <int kParts>
inline void Widen(const DotTokens& x, int64_t channels, float (&to)[kParts][kScaleTile]) {
  for (int part = 0; part < kParts; ++part) {
    for (int64_t c = 0; c < channels; c += 16) {
      const auto* from = reinterpret_cast<const __m256i*>(x.values + part * kPartBytes + c * 2);
      const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from));
      _mm512_store_si512(to[part] + c, _mm512_slli_epi32(wide, 16));
    }
  }
}

// One token by the additions of AMX (panel_dot_amx_bf16.cc): within 32 channels even and odd ones
// apart, then both onto the sum. By fp32's instructions, which do no less than vdpbf16ps on CPUs
// that have AMX. REQUIRES: SubnormalsAsZeros.
template <int kParts, class Weights, bool kAhead>
void MultiplyAsAmx(const DotTile& tile, const DotTokens& x, float* acc) {
  constexpr int64_t kStep = 32 / kGroup;
  const Weights weights = Weights::Make();
  const __m512i odd = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000));
  alignas(64) float wide[kParts][kScaleTile];
  Widen<kParts>(x, tile.groups * kGroup, wide);
  __m512 total[1][2] = {{_mm512_setzero_ps(), _mm512_setzero_ps()}};
  for (int64_t step = 0; step < tile.groups; step += kStep) {
    __m512 sum[kParts][2][2] = {};  // [half][parity]
    for (int64_t g = step; g < std::min(step + kStep, tile.groups); ++g) {
      const std::byte* group = tile.w + g * Weights::kGroupBytes;
      const GroupPairs w[2] = {weights.Half(group, 0), weights.Half(group, 1)};
#pragma GCC unroll 4
      for (int64_t line = 0; line < Weights::kGroupBytes; line += kLine) {
        FetchAhead<kAhead>(group + line);
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const int pair = i / 2, half = i % 2;
        const __m512i both = w[half].pair[pair];
        const __m512 of_even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
        const __m512 of_odd = _mm512_castsi512_ps(_mm512_and_si512(both, odd));
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part) {
          const float* channels = wide[part] + g * kGroup + 2 * pair;
          auto& sums = sum[part][half];
          sums[0] = _mm512_fmadd_ps(of_even, _mm512_set1_ps(channels[0]), sums[0]);
          sums[1] = _mm512_fmadd_ps(of_odd, _mm512_set1_ps(channels[1]), sums[1]);
        }
      }
    }
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m512 both = _mm512_add_ps(sum[part][half][0], sum[part][half][1]);
        total[0][half] = _mm512_add_ps(total[0][half], both);
      }
    }
  }
  AddScaled<1, kParts>(tile, x, total, acc);
}

// As [pairs of channels][kPanel][2] of BF16.
template <bool kAhead>
void DecodeFp8(const DotTile& tile, std::byte* to) {
  const Fp8Weights weights = Fp8Weights::Make();
  for (int64_t g = 0; g < tile.groups; ++g) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const std::byte* from = tile.w + g * Fp8Weights::kGroupBytes;
      FetchAhead<kAhead>(from + half * kLine);
      const GroupPairs w = weights.Half(from, half);
      std::byte* group = to + g * Bf16Weights::kGroupBytes + half * kLine;
      _mm512_store_si512(group, w.pair[0]);
      _mm512_store_si512(group + 2 * kLine, w.pair[1]);
    }
  }
}

template <int kParts, class Weights, bool kAhead, int... kLess>
constexpr TokenKernels UpTo(std::integer_sequence<int, kLess...>) {
  return {.most = sizeof...(kLess), .kernels = {Multiply<kLess + 1, kParts, Weights, kAhead>...}};
}
// Registers hold 24 sums; fewer beside what decoding needs.
template <int kParts, bool kAhead>
constexpr TokenKernels kBf16Tokens =
    UpTo<kParts, Bf16Weights, kAhead>(std::make_integer_sequence<int, kMaxDotTokens / kParts>());
template <int kParts, bool kAhead>
constexpr TokenKernels kFp8Tokens =
    UpTo<kParts, Fp8Weights, kAhead>(std::make_integer_sequence<int, 4>());

template <int kParts>
constexpr DotKernels kBf16Kernels = {.direct = kBf16Tokens<kParts, false>,
                                     .direct_tokens = INT64_MAX,
                                     .direct_ahead = kBf16Tokens<kParts, true>};
template <int kParts>
constexpr DotKernels kFp8Kernels = {.direct = kFp8Tokens<kParts, false>,
                                    .decoded = kBf16Tokens<kParts, false>,
                                    .direct_tokens = 4,
                                    .decode = DecodeFp8<false>,
                                    .direct_ahead = kFp8Tokens<kParts, true>,
                                    .decode_ahead = DecodeFp8<true>};

// The same beside AMX.
template <int kParts, class Weights, bool kAhead>
constexpr TokenKernels kAsAmx = {.most = 1, .kernels = {MultiplyAsAmx<kParts, Weights, kAhead>}};
template <int kParts>
DotKernels Bf16KernelsAsAmx() {
  return {.direct = kAsAmx<kParts, Bf16Weights, false>,
          .direct_tokens = INT64_MAX,
          .direct_ahead = kAsAmx<kParts, Bf16Weights, true>,
          .amx = &AmxKernelsBf16(kParts == 2),
          .subnormals_as_zeros = true};
}
template <int kParts>
DotKernels Fp8KernelsAsAmx() {
  return {.direct = kAsAmx<kParts, Fp8Weights, false>,
          .decoded = kAsAmx<kParts, Bf16Weights, false>,
          .direct_tokens = 1,
          .decode = DecodeFp8<false>,
          .direct_ahead = kAsAmx<kParts, Fp8Weights, true>,
          .decode_ahead = DecodeFp8<true>,
          .amx = &AmxKernelsBf16(kParts == 2),
          .subnormals_as_zeros = true};
}

template <int kParts>
const DotKernels& OfBf16() {
  constexpr RunLayout kRun = {.bytes = kPanel * kScaleTile * 2, .scale_bytes = 0};
  if (HasBf16Amx()) {
    static const DotKernels amx = WithFetchAhead(Bf16KernelsAsAmx<kParts>(), kRun);
    return amx;
  }
  static const DotKernels dots = WithFetchAhead(kBf16Kernels<kParts>, kRun);
  return dots;
}
template <int kParts>
const DotKernels& OfFp8() {
  constexpr RunLayout kRun = {.bytes = kPanel * kScaleTile, .scale_bytes = 0};
  if (HasBf16Amx()) {
    static const DotKernels amx = WithFetchAhead(Fp8KernelsAsAmx<kParts>(), kRun);
    return amx;
  }
  static const DotKernels dots = WithFetchAhead(kFp8Kernels<kParts>, kRun);
  return dots;
}

}  // namespace

const DotKernels& DotKernelsBf16(bool split) {
  return split ? OfBf16<2>() : OfBf16<1>();
}
const DotKernels& DotKernelsFp8(bool split) {
  return split ? OfFp8<2>() : OfFp8<1>();
}

}  // namespace fathom

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
