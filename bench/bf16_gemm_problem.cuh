// Random BF16 products of many tokens, for bf16_gemm_bench and its check.
#pragma once

#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "bench/report.cuh"
#include "products/hopper/bf16_gemm.h"

namespace fathom::bench {

struct TileName {
  Bf16Tile tile;
  const char* name;
};
inline constexpr TileName kTiles[] = {
    {Bf16Tile::kAuto, "auto"},       {Bf16Tile::k64x64, "64x64"},
    {Bf16Tile::k64x128, "64x128"},   {Bf16Tile::k128x64, "128x64"},
    {Bf16Tile::k128x128, "128x128"}, {Bf16Tile::k128x144, "128x144"},
    {Bf16Tile::k128x256, "128x256"}, {Bf16Tile::k256x256, "256x256"},
};

// What a product reads and writes: `count` matrices, heads or experts.
struct Shape {
  int64_t tokens, count, out, in;  // tokens: capacity; of all experts
  bool silu = false, f32 = false, experts = false;
  int64_t channels() const { return silu ? out / 2 : out; }
  int64_t heads() const { return experts ? 1 : count; }
  double operations(double tokens) const { return 2.0 * tokens * heads() * out * in; }
  // `matrices` are those with tokens.
  double bytes(double tokens, double matrices) const {
    return 2.0 * matrices * out * in +
           tokens * heads() * (2.0 * in + (f32 ? 4.0 : 2.0) * channels());
  }
};

// Numbers whose sums round, cancel and swamp each other: exponents 40 apart, zeros of both signs.
static __global__ void MakeWild(__nv_bfloat16* data, size_t count) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    const uint32_t bits = Mix(i * 7 + 3);
    const float x = __bfloat162float(data[i]);
    data[i] = __float2bfloat16_rn(
        bits % 11 == 0 ? x * 0.0f : ldexpf(x, static_cast<int>(bits / 11 % 41) - 20));
  }
}

inline int64_t padding = 0;  // between tokens

struct Problem {
  Problem(const Shape& shape, uint64_t seed, bool wild = false)
      : shape(shape),
        heads(shape.heads()),
        x(shape.tokens * heads * (shape.in + padding)),
        w(shape.count * shape.out * shape.in) {
    Randomize(x, seed);
    Randomize(w, seed + 1);
    if (!wild) return;
    MakeWild<<<2048, 256>>>(x.get(), x.size());
    MakeWild<<<2048, 256>>>(w.get(), w.size());
    BENCH_CHECK(cudaGetLastError());
  }
  // y: [tokens, heads, channels].
  size_t OutBytes() const {
    return static_cast<size_t>(shape.tokens * heads * (shape.channels() + padding) *
                               (shape.f32 ? 4 : 2));
  }
  Bf16ProductParams Params(const int32_t* live, void* y) const {
    return {.x = reinterpret_cast<const BF16*>(x.get()),
            .x_stride = heads * (shape.in + padding),
            .x_head_stride = heads > 1 ? shape.in + padding : 0,
            .w = reinterpret_cast<const BF16*>(w.get()),
            .count = shape.count,
            .out = shape.out,
            .in = shape.in,
            .live = live,
            .tokens = shape.tokens,
            .y = y,
            .y_stride = heads * (shape.channels() + padding),
            .y_head_stride = heads > 1 ? shape.channels() + padding : 0,
            .f32 = shape.f32,
            .silu = shape.silu};
  }
  Shape shape;
  int64_t heads;
  DeviceArray<__nv_bfloat16> x, w;
};

// Counts and begins of experts' pairs in one buffer each.
struct Groups {
  explicit Groups(const std::vector<int32_t>& sizes)
      : counts(sizes),
        begins(Begins(sizes)),
        total(std::reduce(sizes.begin(), sizes.end())),
        with_tokens(std::count_if(sizes.begin(), sizes.end(), [](int32_t n) { return n > 0; })) {}
  static std::vector<int32_t> Begins(const std::vector<int32_t>& sizes) {
    std::vector<int32_t> begins(sizes.size());
    std::exclusive_scan(sizes.begin(), sizes.end(), begins.begin(), 0);
    return begins;
  }
  void Put(Bf16ProductParams& p) const {
    p.counts = counts.get();
    p.begins = begins.get();
  }
  DeviceArray<int32_t> counts, begins;
  int64_t total, with_tokens;
};
// V2-Lite's 66 experts: all tokens share the last two.
inline int64_t SharedOf(int64_t experts) {
  return experts == 66 ? 2 : 0;
}

// Distinct experts for each token.
inline std::vector<int32_t> ChooseExperts(int64_t tokens, int64_t topk, int64_t experts) {
  std::vector<int32_t> chosen;
  uint64_t state = 7;
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<int32_t> ids(static_cast<size_t>(experts));
    std::iota(ids.begin(), ids.end(), 0);
    for (int64_t j = 0; j < topk; ++j) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const bool shared = j >= topk - SharedOf(experts);
      if (!shared) std::swap(ids[j], ids[j + (state >> 33) % (experts - j - SharedOf(experts))]);
      chosen.push_back(shared ? static_cast<int32_t>(experts - topk + j) : ids[j]);
    }
  }
  return chosen;
}

inline std::string Name(const char* kind, int64_t tokens, const Shape& s, const char* tile) {
  return ProductName(kind, tokens, s.out, s.in, tile);
}

// bf16_gemm_check.cu. Returns how many checks failed.
int CheckBf16Gemm(Report& report);

}  // namespace fathom::bench
