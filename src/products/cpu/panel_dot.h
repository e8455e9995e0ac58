// Products with panels by instructions that sum several channels at once (CpuWeight::dots).
#pragma once

#include "cpu/amx.h"
#include "products/cpu/panel_product.h"

namespace fathom {

// A run of a panel.
struct DotTile {
  const std::byte* w;
  int64_t groups;       // of kGroup channels
  const float* scales;  // null: none
  bool scale_per_output;
};

// What those who read codes in order do for each line, if so many bytes before its use are
// worthwhile. A core foresees lines only as far as its window of instructions goes, and on some
// virtual machines the hardware hardly goes further. 5 and 6 KiB into L1 were up to 6 % faster than
// 8 into L2, powers of two slower than what lies between them.
inline constexpr int64_t kFetchAhead = 5 << 10;
template <bool kAhead>
inline void FetchAhead(const std::byte* line) {
  if constexpr (kAhead) __builtin_prefetch(line + kFetchAhead, 0, 3);
}

// Records of one run (pack_tokens.h) that follow each other, a token each.
struct DotTokens {
  const std::byte* values;
  const float* scales;             // null: 1
  const int32_t* offsets;          // kInt8
  const int32_t* sub_run_offsets;  // kInt8: [kSubRuns] of each
  // AmxKernels::of_16: those of a register's rows whose sums are wanted.
  int64_t begin = 0, end = kAmxRows;
};

// acc[r][o] += scales * sum over the tile's channels of x[r] w[o], acc [tokens, kPanel].
using DotKernel = void (*)(const DotTile& tile, const DotTokens& x, float* acc);
inline constexpr int kMaxDotTokens = 12;

// kernels[n - 1] takes n tokens; `most` is as many as registers hold sums for.
struct TokenKernels {
  int64_t most = 0;
  DotKernel kernels[kMaxDotTokens] = {};
};

// Kernels of as many tokens as BeginAmx() was told, at most kAmxRows, and of twice kAmxRows, before
// EndAmx() (cpu/amx.h).
struct AmxKernels {
  DotKernel of_16, of_16_ahead, of_32;
  int64_t groups;        // a run has a whole multiple of these
  int64_t least_tokens;  // that take less time so than without
};

// A format's kernels; the same bits for a token whichever of them it meets.
struct DotKernels {
  // For up to direct_tokens tokens they read the tile as it is packed, beyond that as `decode`
  // leaves it.
  TokenKernels direct, decoded;
  int64_t direct_tokens;
  void (*decode)(const DotTile& tile, std::byte* to);  // to: kMaxDecodedBytes
  // The same as `direct` and `decode`, with FetchAhead.
  TokenKernels direct_ahead;
  void (*decode_ahead)(const DotTile& tile, std::byte* to);
  bool fetches_ahead = false;  // whether these are to be used on this machine: fetch_ahead.h
  // Where the CPU has it: of tiles as this many tokens read them.
  const AmxKernels* amx = nullptr;
  // Called under SubnormalsAsZeros, so that one token has AMX's bits.
  bool subnormals_as_zeros = false;
};
inline constexpr int64_t kMaxDecodedBytes = kScaleTile * kPanel * 2;
inline constexpr int64_t kMaxRecordBytes = kScaleTile * 4;  // of a token (pack_tokens.h)

// Each REQUIRES what cpu/cpu_features.h has of its instructions.
const DotKernels& DotKernelsBf16(bool split);  // of kBF16 weights
const DotKernels& DotKernelsFp8(bool split);
const DotKernels& DotKernelsInt8();
const AmxKernels& AmxKernelsInt8();
const AmxKernels& AmxKernelsBf16(bool split);
const DotKernels& DotKernelsInt4();
const DotKernels& DotKernelsAvx2(bool int4);

// What this CPU has for a format; null: nothing. `split`: activations as two BF16 numbers.
const DotKernels* FindDotKernels(WeightType type, bool split);

// As MultiplyPanels, of which it is a part.
void MultiplyDots(const Panels& panels, const TokenActivations& x, int64_t tokens,
                  const TokenOutputs& out);

}  // namespace fathom
