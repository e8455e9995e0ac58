// Products of many tokens' 8-bit activations with 8-bit codes, by AMX: the integers, and so the
// bits, of panel_dot_int8.cc.
//   formula:       acc += sx sw (offset + sum over channels of x (code + 128)), in integers
//   data mapping:  16 tokens x 64 channels times 64 channels x 16 outputs are one instruction; up
//                  to 16 or 32 tokens meet a run of 32 outputs. Packed codes lie as it wants them
//   bytes, FLOPs:  each weight byte is read once per 128 tokens; 2 operations per weight and token
//   accumulator:   int32 within a run (exact), fp32 over runs
//   expected time: 16 cycles an instruction, 8 for a run of 32 tokens, beside which the sums' way
//                  through L1 into fp32 takes some 200
#include "cpu/amx.h"
#include "products/cpu/panel_dot.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(                                                        \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-int8"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-int8")
// GCC 12's own intrinsics start from values that are undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace fathom {
namespace {

constexpr int64_t kLine = kAmxRowBytes, kLines = kAmxRows;  // a line has a token's sums or codes
constexpr int64_t kStep = kLine / kGroup;                   // groups of channels an instruction

// acc += the sums of 16 tokens and 16 outputs, times their scales.
inline void Finish(const int32_t (&sums)[kLines][16], __m512 scales, const DotTokens& x,
                   float* acc) {
  for (int64_t r = x.begin; r < x.end; ++r) {
    float* to = acc + r * kPanel;
    const __m512i sum =
        _mm512_add_epi32(_mm512_load_si512(sums[r]), _mm512_set1_epi32(x.offsets[r]));
    const __m512 factor = _mm512_mul_ps(_mm512_set1_ps(x.scales[r]), scales);
    const __m512 term = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), factor);
    _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), term));
  }
}

// Registers: 0 to 3 are sums, [block of tokens][half of the outputs]; 4 and 5 a block's
// activations; 6 and 7 a half's codes.
template <int kBlocks, bool kAhead>
void Multiply(const DotTile& tile, const DotTokens& x, float* acc) {
  alignas(64) int32_t sums[kBlocks][2][kLines][16];
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kBlocks == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t g = 0; g < tile.groups; g += kStep) {
    const std::byte *line = tile.w + 2 * g * kLine, *values = x.values + g * kGroup;
    for (int64_t i = 0; kAhead && i < 2 * kStep; ++i) FetchAhead<kAhead>(line + i * kLine);
    _tile_loadd(6, line, 2 * kLine);
    _tile_loadd(4, values, kScaleTile);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, line + kLine, 2 * kLine);
    _tile_dpbsud(1, 4, 7);
    if constexpr (kBlocks == 2) {
      _tile_loadd(5, values + kLines * kScaleTile, kScaleTile);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
  }
  _tile_stored(0, sums[0][0], kLine);
  _tile_stored(1, sums[0][1], kLine);
  if constexpr (kBlocks == 2) {
    _tile_stored(2, sums[1][0], kLine);
    _tile_stored(3, sums[1][1], kLine);
  }
  const __m512 scales[2] = {_mm512_loadu_ps(tile.scales), _mm512_loadu_ps(tile.scales + 16)};
  for (int block = 0; block < kBlocks; ++block) {
    const DotTokens own = {.scales = x.scales + block * kLines,
                           .offsets = x.offsets + block * kLines,
                           .begin = kBlocks == 1 ? x.begin : 0,
                           .end = kBlocks == 1 ? x.end : kLines};
    float* to = acc + block * kLines * kPanel;
    Finish(sums[block][0], scales[0], own, to);
    Finish(sums[block][1], scales[1], own, to + 16);
  }
}

}  // namespace

const AmxKernels& AmxKernelsInt8() {
  static constexpr AmxKernels kKernels = {.of_16 = Multiply<1, false>,
                                          .of_16_ahead = Multiply<1, true>,
                                          .of_32 = Multiply<2, false>,
                                          .groups = kStep,
                                          .least_tokens = 5};
  return kKernels;
}

}  // namespace fathom

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
