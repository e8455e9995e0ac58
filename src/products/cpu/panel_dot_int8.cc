// Products of 8-bit activations with 8- and 4-bit weights, by AVX512_VNNI.
//   formula:       acc += sx sw sum over channels of x (code + 128) - 128 sum of x, in integers
//   data mapping:  16 lanes are outputs, four channels a lane; up to 12 tokens share a pass over a
//                  run of 32 outputs; 4-bit codes are widened in L1 for many tokens
//   bytes, FLOPs:  each weight byte is read once per 128 tokens; 2 operations per weight and token
//   accumulator:   int32 within a run (exact), fp32 over runs
//   expected time: one token: its bytes at read bandwidth; many: vpdpbusd once a cycle (Zen 4), of
//                  which conversions at the end of each run take 3 in 32
#include "cpu/amx.h"
#include "products/cpu/fetch_ahead.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <utility>

#if defined(__clang__)
#pragma clang attribute push(                                                     \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")
// GCC 12's own intrinsics start from values that are undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace fathom {
namespace {

constexpr int64_t kLine = 64, kScaleBytes = CpuWeight::kIntegerScaleBytes;

inline __m512i Load(const std::byte* p) {
  return _mm512_loadu_si512(p);
}
inline __m512i Broadcast(const std::byte* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return _mm512_set1_epi32(four);
}

// _mm512_dpbusd_epi32, for which GCC 12 moves its sums from register to register.
inline void AddDots(__m512i codes, __m512i four, __m512i& sum) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(four));
}

// Loaded before the codes that follow them in memory, which is thus read in order.
struct Scales {
  __m512 of[2];
};
inline Scales LoadScales(const DotTile& tile) {
  return {{_mm512_loadu_ps(tile.scales), _mm512_loadu_ps(tile.scales + 16)}};
}

template <int kTokens>
inline void Finish(const Scales& scales, const DotTokens& x, const __m512i (&sum)[kTokens][2],
                   float* acc) {
#pragma GCC unroll 2
  for (int c = 0; c < 2; ++c) {
#pragma GCC unroll 16
    for (int r = 0; r < kTokens; ++r) {
      float* to = acc + r * kPanel + c * 16;
      const __m512 factor = _mm512_mul_ps(_mm512_set1_ps(x.scales[r]), scales.of[c]);
      const __m512 term = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][c]), factor);
      _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), term));
    }
  }
}

template <int kTokens, bool kAhead>
void Int8(const DotTile& tile, const DotTokens& x, float* acc) {
  const Scales scales = LoadScales(tile);
  __m512i sum[kTokens][2];
#pragma GCC unroll 16
  for (int r = 0; r < kTokens; ++r) sum[r][0] = sum[r][1] = _mm512_set1_epi32(x.offsets[r]);
  for (int64_t g = 0; g < tile.groups; ++g) {
    const std::byte* line = tile.w + 2 * g * kLine;
    const __m512i codes[2] = {Load(line), Load(line + kLine)};
    FetchAhead<kAhead>(line);
    FetchAhead<kAhead>(line + kLine);
#pragma GCC unroll 16
    for (int r = 0; r < kTokens; ++r) {
      const __m512i four = Broadcast(x.values + r * kScaleTile + g * kGroup);
      AddDots(codes[0], four, sum[r][0]);
      AddDots(codes[1], four, sum[r][1]);
    }
  }
  Finish(scales, x, sum, acc);
}

constexpr int64_t kMultiplierBytes = kPanel * kSubRuns / 2;
constexpr int64_t kSubRunGroups = kSubRun / kGroup;
static_assert(kMultiplierBytes == kLine);

// Of a sub-run: multipliers of the outputs below 16, or of the rest (`high`), from the line that
// holds a run's.
inline __m512i Multiplier(__m512i multipliers, int64_t sub_run, bool high) {
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(8 * sub_run + (high ? 4 : 0)));
  return _mm512_and_si512(_mm512_srl_epi32(multipliers, shift), _mm512_set1_epi32(15));
}

// A byte is a low code and 16 times a high one. Bytes and low codes are summed as they are, from
// which the sum of the high codes follows; a sub-run's sums, less 8 for each code, then take their
// multipliers: the same integers.
template <int kTokens, bool kAhead>
void Int4(const DotTile& tile, const DotTokens& x, float* acc) {
  const Scales scales = LoadScales(tile);
  const __m512i multipliers = Load(tile.w), low = _mm512_set1_epi8(15);
  const std::byte *line = tile.w + kMultiplierBytes, *values = x.values;
  __m512i sum[kTokens][2] = {};
  for (int64_t sub_run = 0; sub_run * kSubRunGroups < tile.groups; ++sub_run) {
    __m512i lows[kTokens] = {}, bytes[kTokens] = {};
    // Unrolled, all of its lines would be asked for at once.
#pragma GCC unroll 1
    for (int64_t g = 0; g < kSubRunGroups; ++g, line += kLine, values += kGroup) {
      const __m512i both = Load(line), codes = _mm512_and_si512(both, low);
      FetchAhead<kAhead>(line);
#pragma GCC unroll 16
      for (int r = 0; r < kTokens; ++r) {
        const __m512i four = Broadcast(values + r * kScaleTile);
        AddDots(both, four, bytes[r]);
        AddDots(codes, four, lows[r]);
      }
    }
    const __m512i low_multiplier = Multiplier(multipliers, sub_run, /*high=*/false);
    const __m512i high_multiplier = Multiplier(multipliers, sub_run, /*high=*/true);
#pragma GCC unroll 16
    for (int r = 0; r < kTokens; ++r) {
      const __m512i offset = _mm512_set1_epi32(x.sub_run_offsets[r * kSubRuns + sub_run]);
      const __m512i highs = _mm512_srai_epi32(_mm512_sub_epi32(bytes[r], lows[r]), 4);
      const __m512i low_sum = _mm512_add_epi32(lows[r], offset);
      const __m512i high_sum = _mm512_add_epi32(highs, offset);
      sum[r][0] = _mm512_add_epi32(sum[r][0], _mm512_mullo_epi32(low_sum, low_multiplier));
      sum[r][1] = _mm512_add_epi32(sum[r][1], _mm512_mullo_epi32(high_sum, high_multiplier));
    }
  }
  Finish(scales, x, sum, acc);
}

// As 8-bit codes + 128: multiplier (q - 8) + 128, where two q times the multiplier (at most
// 15 x 15) fit into 16 bits side by side.
template <bool kAhead>
void DecodeInt4(const DotTile& tile, std::byte* to) {
  const __m512i low = _mm512_set1_epi8(15);
  for (int64_t first = 0; first < tile.groups; first += kSubRunGroups) {
    __m512i multiplier[2], constant[2];
    for (int c = 0; c < 2; ++c) {
      const __m512i one = Multiplier(Load(tile.w), first / kSubRunGroups, /*high=*/c == 1);
      multiplier[c] = _mm512_or_si512(one, _mm512_slli_epi32(one, 16));
      const __m512i word =
          _mm512_sub_epi16(_mm512_set1_epi16(128), _mm512_slli_epi16(multiplier[c], 3));
      constant[c] = _mm512_or_si512(word, _mm512_slli_epi16(word, 8));
    }
    for (int64_t g = first; g < first + kSubRunGroups; ++g) {
      const std::byte* from = tile.w + kMultiplierBytes + g * kLine;
      const __m512i both = Load(from);
      FetchAhead<kAhead>(from);
      const __m512i codes[2] = {_mm512_and_si512(both, low),
                                _mm512_and_si512(_mm512_srli_epi16(both, 4), low)};
      for (int c = 0; c < 2; ++c) {
        _mm512_store_si512(
            to + (2 * g + c) * kLine,
            _mm512_add_epi8(_mm512_mullo_epi16(codes[c], multiplier[c]), constant[c]));
      }
    }
  }
}

template <bool kAhead, int... kLess>
constexpr TokenKernels Int8UpTo(std::integer_sequence<int, kLess...>) {
  return {.most = sizeof...(kLess), .kernels = {Int8<kLess + 1, kAhead>...}};
}
template <bool kAhead>
constexpr TokenKernels kInt8Tokens =
    Int8UpTo<kAhead>(std::make_integer_sequence<int, kMaxDotTokens>());
template <bool kAhead>
constexpr TokenKernels kInt4Tokens = {
    .most = 4, .kernels = {Int4<1, kAhead>, Int4<2, kAhead>, Int4<3, kAhead>, Int4<4, kAhead>}};

constexpr DotKernels kInt8Kernels = {
    .direct = kInt8Tokens<false>, .direct_tokens = INT64_MAX, .direct_ahead = kInt8Tokens<true>};
constexpr DotKernels kInt4Kernels = {.direct = kInt4Tokens<false>,
                                     .decoded = kInt8Tokens<false>,
                                     .direct_tokens = 4,
                                     .decode = DecodeInt4<false>,
                                     .direct_ahead = kInt4Tokens<true>,
                                     .decode_ahead = DecodeInt4<true>};

DotKernels WithAmx(DotKernels kernels) {
  kernels.amx = &AmxKernelsInt8();
  return kernels;
}

}  // namespace

const DotKernels& DotKernelsInt8() {
  static const DotKernels dots = WithFetchAhead(
      kInt8Kernels, {.bytes = kScaleBytes + kPanel * kScaleTile, .scale_bytes = kScaleBytes});
  static const DotKernels amx = WithAmx(dots);
  return HasInt8Amx() ? amx : dots;
}
const DotKernels& DotKernelsInt4() {
  static const DotKernels dots = WithFetchAhead(
      kInt4Kernels, {.bytes = kScaleBytes + kMultiplierBytes + kPanel * kScaleTile / 2,
                     .scale_bytes = kScaleBytes});
  static const DotKernels amx = WithAmx(dots);
  return HasInt8Amx() ? amx : dots;
}

}  // namespace fathom

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
