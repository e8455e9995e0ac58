// Products of several tokens' BF16 activations, or pairs of them, with BF16 weights, by AMX: the
// additions, and so the bits, of MultiplyAsAmx (panel_dot_bf16.cc).
//   formula:       acc += sx sw sum over channels of (high + low) w; an x that is rounded or
//                  quantised has no low part
//   data mapping:  16 tokens x 32 channels times 32 channels x 16 outputs are one instruction; up
//                  to 16 or 32 tokens meet a run of 32 outputs, both parts in one sum
//   bytes, FLOPs:  each weight byte is read once per 128 tokens; 2 FLOPs a weight, token and part
//   accumulator:   fp32: even and odd channels of 32 apart, then both onto the run's; then over
//                  runs
//   expected time: 16 cycles an instruction, 32 for a run of 32 tokens in two parts, beside which
//                  the sums' way through L1 takes some 200
#include "cpu/amx.h"
#include "products/cpu/panel_dot.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(                                                        \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-bf16"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-bf16")
// GCC 12's own intrinsics start from values that are undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace fathom {
namespace {

constexpr int64_t kLine = kAmxRowBytes, kLines = kAmxRows;
constexpr int64_t kChannels = kLine / 2;                     // of an instruction
constexpr int64_t kStep = kChannels / kGroup;                // groups
constexpr int64_t kPartBytes = kScaleTile * 2;               // of a token's record
constexpr int64_t kStepBytes = kStep * kGroup * 2 * kPanel;  // of weights

// acc += the sums of tokens [begin, end) and 16 outputs, times their scales.
template <int kParts>
inline void Finish(const float (&sums)[kLines][16], int64_t begin, int64_t end, __m512 scale,
                   const float* of_tokens, float* acc) {
  for (int64_t r = begin; r < end; ++r) {
    float* to = acc + r * kPanel;
    __m512 factor = scale;
    if (kParts == 1 && of_tokens != nullptr) {
      factor = _mm512_mul_ps(_mm512_set1_ps(of_tokens[r]), scale);
    }
    const __m512 term = _mm512_mul_ps(_mm512_load_ps(sums[r]), factor);
    _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), term));
  }
}

// Registers: 0 to 3 are sums, [block of tokens][half of the outputs]; 4 and 5 a block's
// activations; 6 and 7 a half's weights.
template <int kParts, int kBlocks, bool kAhead>
void Multiply(const DotTile& tile, const DotTokens& x, float* acc) {
  constexpr int64_t kRecord = kParts * kPartBytes;
  alignas(64) float sums[kBlocks][2][kLines][16];
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kBlocks == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t s = 0; s < tile.groups / kStep; ++s) {
    const std::byte* line = tile.w + s * kStepBytes;
    for (int64_t at = 0; kAhead && at < kStepBytes; at += kLine) FetchAhead<kAhead>(line + at);
    _tile_loadd(6, line, 2 * kLine);
    _tile_loadd(7, line + kLine, 2 * kLine);
    for (int part = 0; part < kParts; ++part) {
      const std::byte* values = x.values + part * kPartBytes + s * kLine;
      _tile_loadd(4, values, kRecord);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (kBlocks == 2) {
        _tile_loadd(5, values + kLines * kRecord, kRecord);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  _tile_stored(0, sums[0][0], kLine);
  _tile_stored(1, sums[0][1], kLine);
  if constexpr (kBlocks == 2) {
    _tile_stored(2, sums[1][0], kLine);
    _tile_stored(3, sums[1][1], kLine);
  }
  const int64_t begin = kBlocks == 1 ? x.begin : 0, end = kBlocks == 1 ? x.end : kLines;
  for (int half = 0; half < 2; ++half) {
    __m512 scale = _mm512_set1_ps(1.0f);
    if (tile.scales != nullptr) {
      scale = tile.scale_per_output ? _mm512_loadu_ps(tile.scales + half * 16)
                                    : _mm512_set1_ps(*tile.scales);
    }
    for (int block = 0; block < kBlocks; ++block) {
      Finish<kParts>(sums[block][half], begin, end, scale,
                     x.scales == nullptr ? nullptr : x.scales + block * kLines,
                     acc + block * kLines * kPanel + half * 16);
    }
  }
}

template <int kParts>
constexpr AmxKernels kKernels = {.of_16 = Multiply<kParts, 1, false>,
                                 .of_16_ahead = Multiply<kParts, 1, true>,
                                 .of_32 = Multiply<kParts, 2, false>,
                                 .groups = kStep,
                                 .least_tokens = 2};

}  // namespace

const AmxKernels& AmxKernelsBf16(bool split) {
  return split ? kKernels<2> : kKernels<1>;
}

}  // namespace fathom

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
