// Products of activations with packed panels.
//   formula:       out[i][o] = sum over runs r of sx[i][r] sw[o][r] (sum over k in r of x w)
//   data mapping:  lanes are 32 outputs; up to 12 tokens share a pass over a tile of 32 outputs and
//                  128 channels, decoded in registers for a few tokens, once into L1 for many
//   bytes, FLOPs:  each weight byte is read once per 128 tokens; 2 FLOPs per weight and token
//   accumulator:   fp32 within a run in order of channels (FP8 products are exact), then over runs
//   expected time: [1, 2048] x [7168, 2048]: its bytes at read bandwidth; not measured
//                  (bench/ops_bench.cc does, where there are no dot products: panel_dot.h)
#include "products/cpu/panel_product.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "cpu/simd.h"
#include "products/cpu/panel_dot.h"
#include "products/cpu/silu_mul_token.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "products/cpu/panel_product.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "products/cpu/panel_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

// A panel's channels of one run (or two neighbouring panels').
template <class W>
struct Tile {
  const W* w;
  int64_t panel_stride;
  int64_t count;        // channels
  const float* scales;  // kFp8
  int64_t scale_panel_stride;
  bool scale_per_output;
};

// acc[r] += tile . x[r], with acc [kTokens, kPanels * kPanel] and x [kTokens, kScaleTile].
template <int kTokens, int kPanels, bool kScaled, class W>
HWY_INLINE void MultiplyTile(const Tile<W>& tile, const float* HWY_RESTRICT x,
                             const float* x_scales, float* HWY_RESTRICT acc) {
  const DF d;
  constexpr int kColumns = kPanels * kVectors;
  VF sum[kTokens][kColumns];
  SetZero(sum);
  const Strides strides = {.w = kPanel, .panels = tile.panel_stride, .x = kScaleTile};
  Accumulate<kTokens, kPanels>(tile.w, x, strides, tile.count, sum);
  FATHOM_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    VF scale = hn::Zero(d);
    if constexpr (kScaled) {
      const float* s = tile.scales + (c / kVectors) * tile.scale_panel_stride;
      scale = tile.scale_per_output ? hn::LoadU(d, s + (c % kVectors) * kLanes) : hn::Set(d, *s);
    }
    FATHOM_UNROLL
    for (int r = 0; r < kTokens; ++r) {
      float* to = acc + (r * kColumns + c) * kLanes;
      // Not fused: the same bits as the emulating reference.
      if constexpr (kScaled)
        sum[r][c] = hn::Mul(sum[r][c], hn::Mul(hn::Set(d, x_scales[r]), scale));
      hn::Store(hn::Add(hn::Load(d, to), sum[r][c]), d, to);
    }
  }
}

// Tokens [first, first + n) of run r, kScaleTile apart, and their scales.
struct TokenPack {
  alignas(64) float values[kMaxAtOnce * kScaleTile];
  float scales[kMaxAtOnce];

  // Returns where the values are: in place where they lie so already.
  const float* Load(const TokenActivations& x, int64_t run, int64_t count, int64_t first,
                    int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      scales[i] = x.scales == nullptr ? 1.0f : x.scales[run * x.scale_stride + x.Index(first + i)];
    }
    const std::byte* begin = x.values + run * x.run_stride - (run > 0 ? x.first_run_gap : 0);
    const auto token = [&](int64_t i) {
      return reinterpret_cast<const float*>(begin + x.Index(first + i) * x.token_stride);
    };
    constexpr int64_t kTogether = kScaleTile * sizeof(float);
    if (n == 1 || (x.index == nullptr && x.token_stride == kTogether)) return token(0);
    for (int64_t i = 0; i < n; ++i) {
      std::memcpy(values + i * kScaleTile, token(i), static_cast<size_t>(count) * sizeof(float));
    }
    return values;
  }
};

// Tokens [first, end).
struct TokenRange {
  int64_t first, end;
};

// kTokens at a time; returns the first token that is left.
template <int kTokens, bool kScaled, class W>
HWY_INLINE int64_t MultiplyTokens(const Tile<W>& tile, const TokenActivations& x, int64_t run,
                                  TokenRange tokens, TokenPack& pack, float* acc) {
  int64_t first = tokens.first;
  for (; tokens.end - first >= kTokens; first += kTokens) {
    const float* values = pack.Load(x, run, tile.count, first, kTokens);
    MultiplyTile<kTokens, 1, kScaled>(tile, values, pack.scales, acc + first * kPanel);
  }
  return first;
}

template <bool kScaled, class W>
HWY_NOINLINE void MultiplyAllTokens(const Tile<W>& tile, const TokenActivations& x, int64_t run,
                                    int64_t tokens, TokenPack& pack, float* acc) {
  int64_t i = MultiplyTokens<kMaxAtOnce, kScaled>(tile, x, run, {0, tokens}, pack, acc);
  if constexpr (kMaxAtOnce > 6)
    i = MultiplyTokens<6, kScaled>(tile, x, run, {i, tokens}, pack, acc);
  if constexpr (kMaxAtOnce > 4)
    i = MultiplyTokens<4, kScaled>(tile, x, run, {i, tokens}, pack, acc);
  if constexpr (kMaxAtOnce > 2)
    i = MultiplyTokens<2, kScaled>(tile, x, run, {i, tokens}, pack, acc);
  if constexpr (kMaxAtOnce > 1) MultiplyTokens<1, kScaled>(tile, x, run, {i, tokens}, pack, acc);
}

template <class W>
Tile<W> TileOf(const CpuWeight& w, int64_t matrix, int64_t panel, int64_t run) {
  Tile<W> tile = {};
  tile.w = reinterpret_cast<const W*>(w.Codes(matrix, panel, run));
  tile.panel_stride = w.panel_bytes() / static_cast<int64_t>(sizeof(W));
  tile.count = w.run_end(run) - w.run_begin(run);
  if (w.scaled()) {
    tile.scales = w.Scales(matrix, panel, run);
    tile.scale_panel_stride = w.runs() * w.scale_stride();  // kFp8
    tile.scale_per_output = w.scale_per_output;
  }
  return tile;
}

// One token times kPanels neighbouring panels: enough sums to hide the latency of additions.
template <int kPanels, bool kScaled, class W>
HWY_INLINE void OneToken(const Panels& panels, const TokenActivations& x, float* out) {
  const CpuWeight& w = panels.w;
  alignas(64) float acc[kPanels * kPanel] = {};
  TokenPack pack;
  for (int64_t run = 0; run < w.runs(); ++run) {
    const Tile<W> tile = TileOf<W>(w, panels.matrix, panels.begin, run);
    const float* values = pack.Load(x, run, tile.count, 0, 1);
    MultiplyTile<1, kPanels, kScaled>(tile, values, pack.scales, acc);
  }
  for (int64_t p = 0; p < kPanels; ++p) {
    const int64_t panel = panels.begin + p, width = w.panels[static_cast<size_t>(panel)].width;
    std::memcpy(out + panels.OutsBefore(panel), acc + p * kPanel,
                static_cast<size_t>(width) * sizeof(float));
  }
}

// Bytes of kInt8 and kInt4 panels, which are always decoded first.
struct Int8Bytes {
  uint8_t byte;
};
struct Int4Bytes {
  uint8_t byte;
};
template <class W>
constexpr bool kAlwaysDecoded = std::is_same_v<W, Int8Bytes> || std::is_same_v<W, Int4Bytes>;

using DU32 = hn::RebindToUnsigned<DF>;

// Byte `which` of each lane, minus `zero`, as fp32.
template <class V>
HWY_INLINE VF ByteAsFloat(V lanes, int which, uint32_t mask, int32_t zero) {
  const hn::RebindToSigned<DF> di;
  const auto byte = hn::And(hn::ShiftRightSame(lanes, 8 * which), hn::Set(DU32(), mask));
  return hn::ConvertTo(DF(), hn::Sub(hn::BitCast(di, byte), hn::Set(di, zero)));
}

HWY_INLINE auto LoadLanes(const uint8_t* bytes) {
  return hn::LoadU(DU32(), reinterpret_cast<const uint32_t*>(bytes));
}

HWY_INLINE void DecodeNumbers(const Tile<Int8Bytes>& tile, float* to) {
  const uint8_t* from = &tile.w->byte;
  for (int64_t k = 0; k < tile.count; k += kGroup) {
    for (int64_t o = 0; o < kPanel; o += kLanes) {
      const auto codes = LoadLanes(from + (k * kPanel + o * kGroup));
      for (int j = 0; j < kGroup; ++j) {
        hn::Store(ByteAsFloat(codes, j, 255, 128), DF(), to + (k + j) * kPanel + o);
      }
    }
  }
}

HWY_INLINE void DecodeNumbers(const Tile<Int4Bytes>& tile, float* to) {
  constexpr int64_t kHalf = kPanel / 2;
  const uint8_t* from = &tile.w->byte;
  const uint8_t* codes = from + kHalf * kSubRuns;
  for (int64_t k = 0; k < tile.count; k += kGroup) {
    const int sub = static_cast<int>(k / kSubRun);
    for (int64_t o = 0; o < kHalf; o += kLanes) {
      const auto pairs = LoadLanes(codes + (k / kGroup * kHalf + o) * kGroup);
      const auto multipliers = LoadLanes(from + o * kSubRuns);
      const VF low = ByteAsFloat(multipliers, sub, 15, 0);
      const VF high = ByteAsFloat(hn::ShiftRight<4>(multipliers), sub, 15, 0);
      for (int j = 0; j < kGroup; ++j) {
        float* outs = to + (k + j) * kPanel + o;
        hn::Store(hn::Mul(low, ByteAsFloat(pairs, j, 15, 8)), DF(), outs);
        hn::Store(hn::Mul(high, ByteAsFloat(hn::ShiftRight<4>(pairs), j, 15, 8)), DF(),
                  outs + kHalf);
      }
    }
  }
}

// FP8 values stay 2^-8 times too small, as their scales expect.
template <class W>
HWY_INLINE void DecodeNumbers(const Tile<W>& tile, float* to) {
  for (int64_t i = 0; i < tile.count * kPanel; i += kLanes) {
    hn::Store(LoadFloats(tile.w + i), DF(), to + i);
  }
}

// Decodes a tile into `to` [kScaleTile, kPanel].
template <class W>
HWY_INLINE Tile<float> Decode(const Tile<W>& tile, float* to) {
  DecodeNumbers(tile, to);
  return {.w = to,
          .panel_stride = 0,
          .count = tile.count,
          .scales = tile.scales,
          .scale_panel_stride = 0,
          .scale_per_output = tile.scale_per_output};
}

// Up to kTileTokens tokens times up to kPanelGroup neighbouring panels, which find the tokens in
// cache.
template <bool kScaled, class W>
HWY_INLINE void ManyTokens(const Panels& panels, const TokenActivations& x, int64_t tokens,
                           const TokenOutputs& out) {
  const CpuWeight& w = panels.w;
  alignas(64) float acc[kPanelGroup][kTileTokens * kPanel];
  alignas(64) float decoded[kScaleTile * kPanel];
  TokenPack pack;
  for (int64_t p = 0; p < panels.count(); ++p) {
    std::memset(acc[p], 0, static_cast<size_t>(tokens * kPanel) * sizeof(float));
  }
  for (int64_t run = 0; run < w.runs(); ++run) {
    for (int64_t p = 0; p < panels.count(); ++p) {
      const Tile<W> tile = TileOf<W>(w, panels.matrix, panels.begin + p, run);
      if constexpr (kAlwaysDecoded<W>) {
        MultiplyAllTokens<kScaled>(Decode(tile, decoded), x, run, tokens, pack, acc[p]);
      } else if (tokens > kMaxAtOnce) {
        MultiplyAllTokens<kScaled>(Decode(tile, decoded), x, run, tokens, pack, acc[p]);
      } else {
        MultiplyAllTokens<kScaled>(tile, x, run, tokens, pack, acc[p]);
      }
    }
  }
  for (int64_t p = 0; p < panels.count(); ++p) {
    const int64_t panel = panels.begin + p, width = w.panels[static_cast<size_t>(panel)].width;
    for (int64_t i = 0; i < tokens; ++i) {
      std::memcpy(out.From(i, panels.OutsBefore(panel)).data, acc[p] + i * kPanel,
                  static_cast<size_t>(width) * sizeof(float));
    }
  }
}

template <bool kScaled, class W>
void Multiply(const Panels& panels, const TokenActivations& x, int64_t tokens,
              const TokenOutputs& out) {
  constexpr int kPair = kLanes > 1 ? 2 : 1;
  int64_t panel = panels.begin;
  if constexpr (!kAlwaysDecoded<W>) {
    if (tokens == 1) {
      for (; panels.end - panel >= kPair; panel += kPair) {
        OneToken<kPair, kScaled, W>(panels.Part(panel, panel + kPair), x,
                                    out.data + panels.OutsBefore(panel));
      }
    }
  }
  const int64_t group = tokens > kMaxAtOnce ? kPanelGroup : 1;  // a few tokens fit into L1 anyway
  for (int64_t i = 0; i < tokens; i += kTileTokens) {
    for (int64_t p = panel; p < panels.end; p += group) {
      ManyTokens<kScaled, W>(panels.Part(p, std::min(panels.end, p + group)), x.From(i),
                             std::min(kTileTokens, tokens - i), out.From(i, panels.OutsBefore(p)));
    }
  }
}

void MultiplyByFormat(const Panels& panels, const TokenActivations& x, int64_t tokens,
                      const TokenOutputs& out) {
  const auto multiply = [&] {
    switch (panels.w.format.values) {
      case WeightType::kF32: return Multiply<false, float>;
      case WeightType::kF16: return Multiply<false, F16>;
      case WeightType::kBF16: return Multiply<false, BF16>;
      case WeightType::kE4M3: return Multiply<true, E4M3>;
      case WeightType::kInt8: return Multiply<true, Int8Bytes>;
      case WeightType::kInt4: return Multiply<true, Int4Bytes>;
    }
    CHECK(false, "unknown weight format");
  }();
  multiply(panels, x, tokens, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {
namespace {

constexpr int64_t kGatedNumbers = kTileTokens * kPanelGroup * kPanel;  // 64 KiB

}  // namespace

HWY_EXPORT(MultiplyByFormat);

void MultiplyPanels(const Panels& panels, const TokenActivations& x, int64_t tokens,
                    const TokenOutputs& out) {
  const ActivationForm form = panels.w.activations;
  const bool quantized = form == ActivationForm::kE4M3 || form == ActivationForm::kInt8;
  CHECK(quantized == (x.scales != nullptr), "activations not as the weight says");
  if (panels.w.dots) return MultiplyDots(panels, x, tokens, out);
  HWY_DYNAMIC_DISPATCH(MultiplyByFormat)(panels, x, tokens, out);
}

int64_t PanelGrain(const CpuWeight& w, int64_t tokens, int64_t items, int threads) {
  // A step of 16 lanes counts as 2 operations beside those of plain loops.
  const int64_t grain = Grain(w.in * kPanel * std::min(tokens, kTileTokens) / 8);
  // A few tokens are as fast as memory is read, and that is fastest in long pieces. Where codes are
  // asked for ahead the last ones may be short, so that threads wait less for each other.
  if (tokens <= kFewTokens) {
    const bool ahead = w.dots != nullptr && w.dots->fetches_ahead;
    return ahead ? grain : std::max(grain, items / (2 * threads));
  }
  constexpr int64_t kRangesPerThread = 4;
  return std::max(grain, std::min(kPanelGroup, items / (kRangesPerThread * threads)));
}

void MultiplyGated(const Panels& panels, const TokenActivations& x, int64_t tokens,
                   const TokenOutputs& out) {
  const CpuWeight& w = panels.w;
  const int64_t half = w.panel_count() / 2;
  CHECK(w.panel_count() % 2 == 0 && w.OutsBetween(0, half) * 2 == w.out,
        "a gate's outputs and those that it gates do not lie in panels of their own");
  // So many outputs of a token at a time; of a few tokens all that a thread has.
  alignas(64) float gate[kGatedNumbers], up[kGatedNumbers];
  const int64_t most = std::min(tokens, kTileTokens), group = kGatedNumbers / (most * kPanel);
  for (int64_t i = 0; i < tokens; i += most) {
    const int64_t n = std::min(most, tokens - i);
    for (int64_t p = panels.begin; p < panels.end; p += group) {
      const int64_t stop = std::min(panels.end, p + group);
      const int64_t outs =
          w.OutsBetween(p, stop - 1) + w.panels[static_cast<size_t>(stop - 1)].width;
      MultiplyPanels(panels.Part(p, stop), x.From(i), n, {gate, outs});
      MultiplyPanels(panels.Part(half + p, half + stop), x.From(i), n, {up, outs});
      for (int64_t r = 0; r < n; ++r) {
        SiluMulToken(gate + r * outs, up + r * outs, outs,
                     out.From(i + r, panels.OutsBefore(p)).data);
      }
    }
  }
}

namespace {

using Product = decltype(MultiplyPanels);

void Split(ThreadPool& pool, Product& multiply, const Panels& panels, const TokenActivations& x,
           int64_t tokens, const TensorView& out) {
  const int64_t groups = (tokens + kTileTokens - 1) / kTileTokens, count = panels.end;
  const int64_t items = groups * count;
  const TokenOutputs to = {out.As<float>(), out.stride(0)};
  pool.ParallelFor(
      items, PanelGrain(panels.w, tokens, items, pool.threads()), [&](int64_t i, int64_t end, int) {
        while (i < end) {
          const int64_t token = i / count * kTileTokens, panel = i % count;
          const int64_t stop = std::min(count, panel + end - i);
          multiply(panels.Part(panel, stop), x.From(token), std::min(kTileTokens, tokens - token),
                   to.From(token, panels.OutsBefore(panel)));
          i += stop - panel;
        }
      });
}

}  // namespace

void MultiplyInParallel(ThreadPool& pool, const CpuWeight& w, const TokenActivations& x,
                        int64_t tokens, const TensorView& out) {
  Split(pool, MultiplyPanels, {w, 0, 0, w.panel_count()}, x, tokens, out);
}

void MultiplyGatedInParallel(ThreadPool& pool, const CpuWeight& w, const TokenActivations& x,
                             int64_t tokens, const TensorView& out) {
  Split(pool, MultiplyGated, {w, 0, 0, w.panel_count() / 2}, x, tokens, out);
}

}  // namespace fathom
#endif  // HWY_ONCE
