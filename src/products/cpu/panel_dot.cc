// The loops around the kernels of panel_dot_*.cc: runs outermost, so that a run
// of many tokens is in cache while several panels meet it.
#include "products/cpu/panel_dot.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "cpu/amx.h"
#include "cpu/cpu_features.h"
#include "cpu/subnormals.h"

namespace fathom {
namespace {

// Walks the runs of a panel. One token spends so little time on each that finding the next must not
// take many instructions: loads would not be far enough ahead.
class PanelRuns {
 public:
  PanelRuns() = default;
  PanelRuns(const CpuWeight& w, int64_t matrix, int64_t panel)
      : at_(w.panel(matrix, panel)),
        scales_(w.scaled() ? w.Scales(matrix, panel, 0) : nullptr),
        scale_per_output_(w.scale_per_output) {}

  // The run that is next.
  const std::byte* at() const { return at_; }
  DotTile Take(bool integer, int64_t groups, int64_t bytes) {
    DotTile tile = {
        .w = at_, .groups = groups, .scales = scales_, .scale_per_output = scale_per_output_};
    if (integer) {
      tile.scales = reinterpret_cast<const float*>(at_);
      tile.w += CpuWeight::kIntegerScaleBytes;
    } else if (scales_ != nullptr) {
      scales_ += scale_per_output_ ? kPanel : 1;
    }
    at_ += bytes;
    return tile;
  }

 private:
  const std::byte* at_ = nullptr;
  const float* scales_ = nullptr;
  bool scale_per_output_ = false;
};

// Tokens of one run, gathered where they do not follow each other.
struct RunTokens {
  alignas(64) std::byte values[kTileTokens * kMaxRecordBytes];
  float scales[kTileTokens];
  int32_t offsets[kTileTokens];
  int32_t sub_run_offsets[kTileTokens * kSubRuns];
  DotTokens tokens;
  int64_t record_bytes;

  void Load(const TokenActivations& x, int64_t run, int64_t n) {
    record_bytes = x.record_bytes;
    if (n > 1 && (x.index != nullptr || x.token_stride != x.record_bytes)) return Gather(x, run, n);
    const int64_t i = x.Index(0);
    tokens = {.values = x.values + run * x.run_stride + i * x.token_stride,
              .scales = x.scales == nullptr ? nullptr : x.scales + run * x.scale_stride + i,
              .offsets = x.offsets == nullptr ? nullptr : x.offsets + run * x.scale_stride + i,
              .sub_run_offsets = x.sub_run_offsets == nullptr
                                     ? nullptr
                                     : x.sub_run_offsets + (run * x.scale_stride + i) * kSubRuns};
  }
  // Not in line: a single token finds its run in few instructions.
  [[gnu::noinline]] void Gather(const TokenActivations& x, int64_t run, int64_t n) {
    const std::byte* from = x.values + run * x.run_stride;
    for (int64_t r = 0; r < n; ++r) {
      const int64_t i = x.Index(r);
      std::memcpy(values + r * record_bytes, from + i * x.token_stride,
                  static_cast<size_t>(record_bytes));
      if (x.scales != nullptr) scales[r] = x.scales[run * x.scale_stride + i];
      if (x.offsets != nullptr) offsets[r] = x.offsets[run * x.scale_stride + i];
      if (x.sub_run_offsets != nullptr) {
        std::memcpy(sub_run_offsets + r * kSubRuns,
                    x.sub_run_offsets + (run * x.scale_stride + i) * kSubRuns,
                    kSubRuns * sizeof(int32_t));
      }
    }
    tokens = {.values = values,
              .scales = x.scales == nullptr ? nullptr : scales,
              .offsets = x.offsets == nullptr ? nullptr : offsets,
              .sub_run_offsets = x.sub_run_offsets == nullptr ? nullptr : sub_run_offsets};
  }
  DotTokens From(int64_t token) const {
    return {.values = tokens.values + token * record_bytes,
            .scales = tokens.scales == nullptr ? nullptr : tokens.scales + token,
            .offsets = tokens.offsets == nullptr ? nullptr : tokens.offsets + token,
            .sub_run_offsets = tokens.sub_run_offsets == nullptr
                                   ? nullptr
                                   : tokens.sub_run_offsets + token * kSubRuns};
  }
};

// Into L2: the lines of a tile that fall to tokens [begin, end) of `tokens`. Tiles of several
// panels take turns, which the hardware does not foresee.
void PrefetchShare(const std::byte* tile, int64_t bytes, int64_t begin, int64_t end,
                   int64_t tokens) {
  constexpr int64_t kLine = 64;
  const int64_t lines = (bytes + kLine - 1) / kLine;
  for (int64_t i = begin * lines / tokens; i < end * lines / tokens; ++i) {
    __builtin_prefetch(tile + i * kLine, 0, 2);
  }
}

// A panel's part of a token's results, which is to be written.
inline void PrefetchOut(const float* to) {
  for (int64_t i = 0; i < kPanel; i += 16) __builtin_prefetch(to + i, 1, 2);
}

// Of one token, the outputs of one panel.
inline void StoreOuts(const float* from, const CpuWeight::Panel& panel, float* to) {
  if (panel.width == kPanel) {
    std::memcpy(to, from, kPanel * sizeof(float));  // inlined
  } else {
    std::memcpy(to, from, static_cast<size_t>(panel.width) * sizeof(float));
  }
}

// What is the same of all of a panel's runs but the first and the last.
struct RunSizes {
  explicit RunSizes(const CpuWeight& w)
      : w(w), integer(w.integer()), last(w.runs() - 1), whole_bytes(w.BytesOf(kScaleTile)) {}

  DotTile Take(PanelRuns& walk, int64_t run) const {
    if (run > 0 && run < last) return walk.Take(integer, kScaleTile / kGroup, whole_bytes);
    const int64_t channels = w.run_end(run) - w.run_begin(run);
    return walk.Take(integer, (channels + kGroup - 1) / kGroup, w.RunBytes(run));
  }

  const CpuWeight& w;
  const bool integer;
  const int64_t last, whole_bytes;
};

// A few tokens times panels, one after the other. REQUIRES: a direct kernel of so many tokens.
void MultiplyFew(const Panels& panels, const TokenActivations& x, int64_t tokens,
                 const TokenOutputs& out) {
  const CpuWeight& w = panels.w;
  const TokenKernels& by_tokens = w.dots->fetches_ahead ? w.dots->direct_ahead : w.dots->direct;
  const DotKernel kernel = by_tokens.kernels[tokens - 1];
  const RunSizes sizes(w);
  RunTokens run_tokens;
  for (int64_t p = panels.begin; p < panels.end; ++p) {
    alignas(64) float acc[kFewTokens * kPanel] = {};
    PanelRuns walk(w, panels.matrix, p);
    for (int64_t run = 0; run <= sizes.last; ++run) {
      run_tokens.Load(x, run, tokens);
      kernel(sizes.Take(walk, run), run_tokens.tokens, acc);
    }
    for (int64_t i = 0; i < tokens; ++i) {
      StoreOuts(acc + i * kPanel, w.panels[static_cast<size_t>(p)],
                out.From(i, panels.OutsBefore(p)).data);
    }
  }
}

// Calls of kernels that take so many tokens together.
class Passes {
 public:
  struct Pass {
    int64_t first, tokens;
    DotKernel kernel;
    int64_t again;  // tokens before `first` that fill a register and are left out
  };

  Passes(int64_t tokens, const TokenKernels& by_tokens) {
    int64_t i = 0;
    for (int64_t left = (tokens + by_tokens.most - 1) / by_tokens.most; left > 0; --left) {
      const int64_t n = (tokens - i + left - 1) / left;  // nearly the same
      Add(i, n, by_tokens.kernels[n - 1]);
    }
  }
  Passes(int64_t tokens, const AmxKernels* amx, bool ahead) {
    const int64_t rows = std::min(tokens, kAmxRows);
    for (int64_t i = 0; amx != nullptr && i < tokens;) {
      if (tokens - i >= 2 * kAmxRows) {
        Add(i, 2 * kAmxRows, amx->of_32);
      } else {
        const int64_t n = std::min(rows, tokens - i);
        Add(i, n, ahead ? amx->of_16_ahead : amx->of_16, rows - n);
      }
    }
  }
  std::span<const Pass> all() const { return {passes_, static_cast<size_t>(count_)}; }

 private:
  void Add(int64_t& first, int64_t tokens, DotKernel kernel, int64_t again = 0) {
    passes_[count_++] = {first, tokens, kernel, again};
    first += tokens;
  }

  Pass passes_[kTileTokens];
  int64_t count_ = 0;
};

// Up to kTileTokens tokens times up to kPanelGroup panels.
void MultiplyGroup(const Panels& panels, const TokenActivations& x, int64_t tokens,
                   const TokenOutputs& out) {
  const CpuWeight& w = panels.w;
  const DotKernels& kernels = *w.dots;
  alignas(64) float acc[kPanelGroup][kTileTokens * kPanel];
  alignas(64) std::byte decoded[kMaxDecodedBytes];
  RunTokens run_tokens;
  PanelRuns walks[kPanelGroup];
  for (int64_t p = 0; p < panels.count(); ++p) {
    std::memset(acc[p], 0, static_cast<size_t>(tokens * kPanel) * sizeof(float));
    walks[p] = PanelRuns(w, panels.matrix, panels.begin + p);
  }
  const RunSizes sizes(w);
  const bool direct = tokens <= kernels.direct_tokens;
  const bool packed = direct && kernels.decode != nullptr;  // not as AMX reads them
  const AmxKernels* const amx =
      kernels.amx != nullptr && tokens >= kernels.amx->least_tokens && !packed ? kernels.amx
                                                                               : nullptr;
  const bool once = tokens <= (amx != nullptr ? kAmxRows
                               : direct       ? kernels.direct.most
                                              : kernels.decoded.most);
  // A panel that is read once and in order.
  const bool ahead = panels.count() == 1 && (once || !direct) && kernels.fetches_ahead;
  const TokenKernels& by_tokens = !direct ? kernels.decoded
                                  : ahead ? kernels.direct_ahead
                                          : kernels.direct;
  const auto decode = ahead ? kernels.decode_ahead : kernels.decode;
  const Passes plain(tokens, by_tokens);
  const Passes by_amx(tokens, amx, ahead && direct);
  if (amx != nullptr) BeginAmx(std::min(tokens, kAmxRows));
  for (int64_t run = 0; run <= sizes.last; ++run) {
    run_tokens.Load(x, run, tokens);
    for (int64_t p = 0; p < panels.count(); ++p) {
      DotTile tile = sizes.Take(walks[p], run);
      if (!direct) {
        decode(tile, decoded);
        tile.w = decoded;
      }
      const std::byte* next = walks[p + 1 < panels.count() ? p + 1 : 0].at();
      const Passes& passes = amx != nullptr && tile.groups % amx->groups == 0 ? by_amx : plain;
      for (const auto& [i, n, kernel, again] : passes.all()) {
        if (tokens > kFewTokens) {
          if (!ahead) PrefetchShare(next, sizes.whole_bytes, i, i + n, tokens);
          if (run == sizes.last) {
            const TokenOutputs to = out.From(i, panels.OutsBefore(panels.begin + p));
            for (int64_t r = 0; r < n; ++r) PrefetchOut(to.data + r * to.stride);
          }
        }
        DotTokens own = run_tokens.From(i - again);
        own.begin = again, own.end = again + n;
        kernel(tile, own, acc[p] + (i - again) * kPanel);
      }
    }
  }
  if (amx != nullptr) EndAmx();
  for (int64_t i = 0; i < tokens; ++i) {
    for (int64_t p = 0; p < panels.count(); ++p) {
      const CpuWeight::Panel& panel = w.panels[static_cast<size_t>(panels.begin + p)];
      StoreOuts(acc[p] + i * kPanel, panel, out.From(i, panels.OutsBefore(panels.begin + p)).data);
    }
  }
}

}  // namespace

const DotKernels* FindDotKernels(WeightType type, bool split) {
#if defined(__x86_64__)
  switch (type) {
    case WeightType::kBF16: return HasBf16Dot() ? &DotKernelsBf16(split) : nullptr;
    case WeightType::kE4M3: return HasBf16Dot() ? &DotKernelsFp8(split) : nullptr;
    case WeightType::kInt8:
      if (HasInt8Dot()) return &DotKernelsInt8();
      return HasAvx2() ? &DotKernelsAvx2(/*int4=*/false) : nullptr;
    case WeightType::kInt4:
      if (HasInt8Dot()) return &DotKernelsInt4();
      return HasAvx2() ? &DotKernelsAvx2(/*int4=*/true) : nullptr;
    default: break;
  }
#endif
  (void)type, (void)split;
  return nullptr;
}

void MultiplyDots(const Panels& panels, const TokenActivations& x, int64_t tokens,
                  const TokenOutputs& out) {
  if (tokens == 0) return;
  const DotKernels& kernels = *panels.w.dots;
  const SubnormalsAsZeros scope(kernels.subnormals_as_zeros);
  if (tokens <= std::min({kFewTokens, kernels.direct.most, kernels.direct_tokens})) {
    return MultiplyFew(panels, x, tokens, out);
  }
  const int64_t group =
      tokens > kMaxDotTokens ? kPanelGroup : 1;  // a few tokens fit into L1 anyway
  for (int64_t i = 0; i < tokens; i += kTileTokens) {
    for (int64_t p = panels.begin; p < panels.end; p += group) {
      MultiplyGroup(panels.Part(p, std::min(panels.end, p + group)), x.From(i),
                    std::min(kTileTokens, tokens - i), out.From(i, panels.OutsBefore(p)));
    }
  }
}

}  // namespace fathom
