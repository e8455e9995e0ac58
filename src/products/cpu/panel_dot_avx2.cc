// Products of 8-bit activations with 8- and 4-bit weights, by AVX2: the integers, and so the bits,
// of panel_dot_int8.cc.
//   formula:       acc += sx sw sum over channels of x (code + 128) - 128 sum of x, in integers
//   data mapping:  8 lanes are outputs; bytes become words in registers, the even and the odd
//                  channels of four apart; 4-bit codes are widened in L1
//   bytes, FLOPs:  each weight byte is read once per 128 tokens; 2 operations per weight and token
//   accumulator:   int32 within a run (exact), fp32 over runs
//   expected time: one token: its bytes at read bandwidth; many: 16 instructions per 4 channels and
//                  token beside 12 for the codes, of which two tokens share a pass
#include "products/cpu/fetch_ahead.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

namespace fathom {
namespace {

constexpr int kVectors = 4;  // of a panel
constexpr int64_t kVectorBytes = 32;

inline __m256i Load(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
// Four channels as words: the first and third, the second and fourth.
struct Words {
  __m256i even, odd;
};
inline Words Unsigned(__m256i codes) {
  return {_mm256_and_si256(codes, _mm256_set1_epi16(255)), _mm256_srli_epi16(codes, 8)};
}
inline Words Signed(const std::byte* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  const __m256i x = _mm256_set1_epi32(four);
  return {_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), _mm256_srai_epi16(x, 8)};
}

template <int kTokens, bool kAhead>
void Int8(const DotTile& tile, const DotTokens& x, float* acc) {
  __m256i sum[kTokens][kVectors];
#pragma GCC unroll 2
  for (int r = 0; r < kTokens; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) sum[r][c] = _mm256_set1_epi32(x.offsets[r]);
  }
  for (int64_t g = 0; g < tile.groups; ++g) {
    Words four[kTokens];
    FetchAhead<kAhead>(tile.w + kVectors * g * kVectorBytes);
    FetchAhead<kAhead>(tile.w + (kVectors * g + 2) * kVectorBytes);
#pragma GCC unroll 2
    for (int r = 0; r < kTokens; ++r) four[r] = Signed(x.values + r * kScaleTile + g * kGroup);
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      const Words codes = Unsigned(Load(tile.w + (kVectors * g + c) * kVectorBytes));
#pragma GCC unroll 2
      for (int r = 0; r < kTokens; ++r) {
        const __m256i even = _mm256_madd_epi16(codes.even, four[r].even);
        const __m256i odd = _mm256_madd_epi16(codes.odd, four[r].odd);
        sum[r][c] = _mm256_add_epi32(sum[r][c], _mm256_add_epi32(even, odd));
      }
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < kVectors; ++c) {
    const __m256 scale = _mm256_loadu_ps(tile.scales + 8 * c);
#pragma GCC unroll 2
    for (int r = 0; r < kTokens; ++r) {
      float* to = acc + r * kPanel + 8 * c;
      const __m256 factor = _mm256_mul_ps(_mm256_set1_ps(x.scales[r]), scale);
      const __m256 term = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[r][c]), factor);
      _mm256_store_ps(to, _mm256_add_ps(_mm256_load_ps(to), term));
    }
  }
}

// As DecodeInt4 of panel_dot_int8.cc.
template <bool kAhead>
void DecodeInt4(const DotTile& tile, std::byte* to) {
  constexpr int64_t kMultiplierBytes = kPanel * kSubRuns / 2;
  constexpr int64_t kSubRunGroups = kSubRun / kGroup;
  const __m256i low = _mm256_set1_epi8(15);
  for (int64_t first = 0; first < tile.groups; first += kSubRunGroups) {
    __m256i multiplier[kVectors], constant[kVectors];
    for (int c = 0; c < kVectors; ++c) {
      const auto bit = static_cast<int>(8 * (first / kSubRunGroups) + (c < 2 ? 0 : 4));
      const __m256i multipliers =
          _mm256_srl_epi32(Load(tile.w + c % 2 * kVectorBytes), _mm_cvtsi32_si128(bit));
      const __m256i one = _mm256_and_si256(multipliers, _mm256_set1_epi32(15));
      multiplier[c] = _mm256_or_si256(one, _mm256_slli_epi32(one, 16));
      const __m256i word =
          _mm256_sub_epi16(_mm256_set1_epi16(128), _mm256_slli_epi16(multiplier[c], 3));
      constant[c] = _mm256_or_si256(word, _mm256_slli_epi16(word, 8));
    }
    for (int64_t g = first; g < first + kSubRunGroups; ++g) {
      FetchAhead<kAhead>(tile.w + kMultiplierBytes + 2 * g * kVectorBytes);
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) {
        const __m256i both = Load(tile.w + kMultiplierBytes + (2 * g + c % 2) * kVectorBytes);
        const __m256i codes = _mm256_and_si256(c < 2 ? both : _mm256_srli_epi16(both, 4), low);
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + (kVectors * g + c) * kVectorBytes),
                           _mm256_add_epi8(_mm256_mullo_epi16(codes, multiplier[c]), constant[c]));
      }
    }
  }
}

template <bool kAhead>
constexpr TokenKernels kInt8Tokens = {.most = 2, .kernels = {Int8<1, kAhead>, Int8<2, kAhead>}};
constexpr DotKernels kInt8Kernels = {
    .direct = kInt8Tokens<false>, .direct_tokens = INT64_MAX, .direct_ahead = kInt8Tokens<true>};
constexpr DotKernels kInt4Kernels = {.decoded = kInt8Tokens<false>,
                                     .direct_tokens = 0,
                                     .decode = DecodeInt4<false>,
                                     .decode_ahead = DecodeInt4<true>};

}  // namespace

const DotKernels& DotKernelsAvx2(bool int4) {
  constexpr int64_t kScaleBytes = CpuWeight::kIntegerScaleBytes;
  static const DotKernels int8 = WithFetchAhead(
      kInt8Kernels, {.bytes = kScaleBytes + kPanel * kScaleTile, .scale_bytes = kScaleBytes});
  // These have no kernel that could be timed so: they read as int8's.
  static const DotKernels int4_kernels = [] {
    DotKernels kernels = kInt4Kernels;
    kernels.fetches_ahead = int8.fetches_ahead;
    return kernels;
  }();
  return int4 ? int4_kernels : int8;
}

}  // namespace fathom

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
