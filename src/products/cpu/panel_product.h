// The product that all matrix ops of the CPU table are made of.
#pragma once

#include <cstdint>

#include "cpu/thread_pool.h"
#include "products/cpu/cpu_weight.h"

namespace fathom {

// Tokens that are quantised and multiplied at a time: bounds work space; beyond it reading the
// weights again costs little beside the arithmetic.
inline constexpr int64_t kTokenChunk = 512;
// Tokens that share a decoded tile of weights; callers split more tokens between threads.
inline constexpr int64_t kTileTokens = 128;
// So few are as fast as memory is read.
inline constexpr int64_t kFewTokens = 4;
// Panels that a thread takes together, so that many tokens are read from cache for all but the
// first.
inline constexpr int64_t kPanelGroup = 4;

// Tokens of activations as runs (CpuWeight::run_begin), in the weight's ActivationForm. Run r of
// token i begins at values + r * run_stride - (r > 0 ? first_run_gap : 0) + Index(i) *
// token_stride.
struct TokenActivations {
  const std::byte* values = nullptr;
  int64_t run_stride = 0, token_stride = 0;  // bytes
  int64_t first_run_gap = 0;                 // bytes that run 0 lacks of kScaleTile channels
  int64_t record_bytes = 0;                  // of a packed run of a token
  // Of run r of token i at r * scale_stride + Index(i); null: none.
  const float* scales = nullptr;
  const int32_t* offsets = nullptr;          // kInt8
  const int32_t* sub_run_offsets = nullptr;  // kInt8, kSubRuns times as far
  int64_t scale_stride = 0;
  const int32_t* index = nullptr;  // null: token i is i

  int64_t Index(int64_t i) const { return index == nullptr ? i : index[i]; }
  // Without the first n tokens.
  TokenActivations From(int64_t n) const {
    TokenActivations rest = *this;
    if (index != nullptr) {
      rest.index += n;
    } else {
      rest.values += n * token_stride;
      if (scales != nullptr) rest.scales += n;
      if (offsets != nullptr) rest.offsets += n;
      if (sub_run_offsets != nullptr) rest.sub_run_offsets += n * kSubRuns;
    }
    return rest;
  }
};

// Tokens of a plain matrix, for weights that take activations as they lie.
inline TokenActivations PlainTokens(const CpuWeight& w, const float* x, int64_t token_stride) {
  constexpr int64_t kBytes = sizeof(float);
  return {.values = reinterpret_cast<const std::byte*>(x),
          .run_stride = kScaleTile * kBytes,
          .token_stride = token_stride * kBytes,
          .first_run_gap = w.channel_runs().offset * kBytes};
}

// Panels [begin, end) of a matrix.
struct Panels {
  const CpuWeight& w;
  int64_t matrix, begin, end;

  int64_t count() const { return end - begin; }
  // From the first output of these to that of panel p.
  int64_t OutsBefore(int64_t p) const { return w.OutsBetween(begin, p); }
  Panels Part(int64_t first, int64_t last) const { return {w, matrix, first, last}; }
};

// Where tokens of results go: token i at data + i * stride, its outputs from the first panel's on.
struct TokenOutputs {
  float* data;
  int64_t stride;

  TokenOutputs From(int64_t token, int64_t outs) const {
    return {data + token * stride + outs, stride};
  }
};

// out[i] = x[i] . w[matrix] for i in [0, tokens) and the outputs of `panels`. Every sum is taken
// run by run, within a run in ascending order of channels (if w.dots: of pairs of them, in
// integers, or with AMX even and odd ones of 32 apart); then out += sum * (activation scale *
// weight scale). Neither `tokens` nor the panels asked for change a bit of it.
void MultiplyPanels(const Panels& panels, const TokenActivations& x, int64_t tokens,
                    const TokenOutputs& out);

// The same of a weight whose first half of panels is a gate and whose second half is what it gates:
// silu(x . gate) * (x . up), for `panels` of the gate. The products stay in cache.
// REQUIRES: tokens >= 1.
void MultiplyGated(const Panels& panels, const TokenActivations& x, int64_t tokens,
                   const TokenOutputs& out);

// All panels (of the gate), split between threads by panel and group of tokens.
void MultiplyInParallel(ThreadPool& pool, const CpuWeight& w, const TokenActivations& x,
                        int64_t tokens, const TensorView& out);
void MultiplyGatedInParallel(ThreadPool& pool, const CpuWeight& w, const TokenActivations& x,
                             int64_t tokens, const TensorView& out);

// How many of `items` panels (of groups of so many tokens) a thread should take at a time.
int64_t PanelGrain(const CpuWeight& w, int64_t tokens, int64_t items, int threads);

}  // namespace fathom
