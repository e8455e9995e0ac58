// Random FP8 problems and their reference.
#pragma once

#include <cuda_fp8.h>

#include <memory>

#include "bench/gpu_bench.cuh"
#include "bench/report.cuh"
#include "products/hopper/fp8_gemm.h"

namespace fathom::bench {

// E4M3 codes of numbers about 0 with a deviation of 60; floats in [0.5, 1.5) / 128.
static __global__ void FillCodes(uint8_t* to, size_t count, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    float sum = -2;
    for (int j = 0; j < 4; ++j) {
      sum += Mix((seed << 40) + 4 * i + j + 0x9e3779b97f4a7c15ull) * 0x1p-32f;
    }
    to[i] = __nv_cvt_float_to_fp8(sum * 104, __NV_SATFINITE, __NV_E4M3);
  }
}
static __global__ void FillScales(float* to, size_t count, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    to[i] = (0.5f + Mix((seed << 40) + i) * 0x1p-32f) / 128;
  }
}

inline int64_t Runs(int64_t channels) {
  return (channels + 127) / 128;
}

// Quantised activations of `tokens` tokens.
struct TokensData {
  TokensData(int64_t tokens, int64_t channels, uint64_t seed)
      : capacity(tokens),
        width(channels),
        codes(tokens * channels),
        scales(Runs(channels) * Fp8ScalePitch(tokens)) {
    FillCodes<<<1056, 256>>>(codes.get(), codes.size(), seed);
    FillScales<<<1056, 256>>>(scales.get(), scales.size(), seed + 1);
    BENCH_CHECK(cudaGetLastError());
  }
  Fp8Tokens tokens() const {
    return {codes.get(), scales.get(), capacity, width, Fp8ScalePitch(capacity)};
  }
  int64_t capacity, width;
  DeviceArray<uint8_t> codes;
  DeviceArray<float> scales;
};

struct NamedTile {
  Fp8Tile tile;
  const char* name;
};
inline constexpr NamedTile kTiles[] = {{Fp8Tile::k64x32, "64x32"},
                                       {Fp8Tile::k64x64, "64x64"},
                                       {Fp8Tile::k64x128, "64x128"},
                                       {Fp8Tile::k128x64, "128x64"},
                                       {Fp8Tile::k128x128, "128x128"},
                                       {Fp8Tile::k256x128Pair, "256x128 pair"},
                                       {Fp8Tile::k128x192, "128x192"},
                                       {Fp8Tile::k128x256Pair, "128x256 pair"},
                                       {Fp8Tile::k64x64Chains, "64x64 chains"},
                                       {Fp8Tile::k64x128Chains, "64x128 chains"},
                                       {Fp8Tile::k128x128Chains, "128x128 chains"},
                                       {Fp8Tile::k128x64Folds, "128x64 folds"},
                                       {Fp8Tile::k128x128FoldsPair, "128x128 folds, pair"}};
inline const char* NameOf(Fp8Tile tile) {
  for (const NamedTile& named : kTiles) {
    if (named.tile == tile) return named.name;
  }
  return "auto";
}

// Whether a tile gives a dense product's bits, or the only ones of several matrices.
inline bool Suits(Fp8Tile tile, const Fp8Weights& w) {
  return (tile >= Fp8Tile::k64x64Chains) == (Fp8ChainsOf(w) > 1);
}

struct WeightsData {
  WeightsData(int64_t count_, int64_t parts_, int64_t part_out_, int64_t in_, uint64_t seed)
      : count(count_),
        parts(parts_),
        part_out(part_out_),
        in(in_),
        codes(count * parts * part_out * in),
        scales(count * parts * Runs(part_out) * Runs(in)) {
    FillCodes<<<1056, 256>>>(codes.get(), codes.size(), seed);
    FillScales<<<1056, 256>>>(scales.get(), scales.size(), seed + 1);
    BENCH_CHECK(cudaGetLastError());
  }
  Fp8Weights weights() const { return {codes.get(), scales.get(), count, parts, part_out, in}; }
  int64_t count, parts, part_out, in;
  DeviceArray<uint8_t> codes;
  DeviceArray<float> scales;
};

// Token `token_step` * blockIdx.y of each group in double: products are exact, runs are summed in
// fp64.
static __global__ void ReferenceGemm(Fp8Tokens x, Fp8Weights w, Fp8TokenGroups groups,
                                     int token_step, float* out) {
  const int64_t n = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, total = w.parts * w.part_out;
  const int64_t group = blockIdx.z, local = int64_t{blockIdx.y} * token_step;
  if (n >= total || local >= groups.counts[group]) return;
  const int64_t token =
      local + (groups.begins != nullptr ? groups.begins[group] : group * groups.capacity);
  const int64_t runs = (w.in + 127) / 128, tiles = (w.part_out + 127) / 128;
  const uint8_t* const weights = w.codes + (group * total + n) * w.in;
  const float* const weight_scales =
      w.scales + ((group * w.parts + n / w.part_out) * tiles + n % w.part_out / 128) * runs;
  const auto value = [](uint8_t code) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
  };
  double sum = 0;
  for (int64_t run = 0; run < runs; ++run) {
    float products = 0;
    for (int64_t k = run * 128; k < min(w.in, run * 128 + 128); ++k) {
      products += value(x.codes[token * w.in + k]) * value(weights[k]);
    }
    sum +=
        static_cast<double>(products) * x.scales[run * x.scale_pitch + token] * weight_scales[run];
  }
  out[token * total + n] = static_cast<float>(sum);
}
// out: F32 [capacity of x, parts * part_out]; `most` tokens of a group.
inline void Reference(const Fp8Tokens& x, const Fp8Weights& w, const Fp8TokenGroups& groups,
                      int64_t most, int token_step, float* out) {
  const dim3 grid(static_cast<unsigned>((w.parts * w.part_out + 127) / 128),
                  static_cast<unsigned>((most + token_step - 1) / token_step),
                  static_cast<unsigned>(w.count));
  if (grid.y == 0) return;
  ReferenceGemm<<<grid, 128>>>(x, w, groups, token_step, out);
  BENCH_CHECK(cudaGetLastError());
}

// TFLOPS of E4M3 wgmma on random data: what clocks and power allow.
inline double Fp8Peak() {
  constexpr int kBlocks = 132;
  DeviceArray<uint8_t> data(kWgmmaPeakBytes);
  FillCodes<<<16, 256>>>(data.get(), data.size(), 3);
  DeviceArray<float> sink(kBlocks * kWgmmaPeakThreads);
  const double us = MedianMicroseconds(4, 20, [&](int, cudaStream_t stream) {
    LaunchWgmmaFp8Peak(data.get(), sink.get(), kBlocks, stream);
  });
  return kWgmmaFp8Operations * kBlocks / us * 1e-6;
}

// Inputs that take turns.
struct Sets {
  Sets(int64_t count, int64_t tokens, int64_t parts, int64_t part_out, int64_t in)
      : out(count * tokens * parts * part_out) {
    const double bytes = static_cast<double>(count * (parts * part_out + tokens) * in);
    for (int i = 0; i < SetsPastL2(bytes); ++i) {
      x.push_back(std::make_unique<TokensData>(count * tokens, in, 100 + i));
      w.push_back(std::make_unique<WeightsData>(count, parts, part_out, in, 200 + i));
    }
  }
  int size() const { return static_cast<int>(x.size()); }
  std::vector<std::unique_ptr<TokensData>> x;
  std::vector<std::unique_ptr<WeightsData>> w;
  DeviceArray<__nv_bfloat16> out;
};

// Bytes and operations of a product, as rates.
inline Values Rates(double us, double count, double tokens, double n, double k, double out_bytes) {
  const double bytes = count * (n * k + tokens * k + tokens * n * out_bytes + tokens * k / 32);
  return {{"us", us},
          {"TFLOPS", 2e-6 * count * tokens * n * k / us},
          {"GB/s", 1e-3 * bytes / us},
          {"weights_GB/s", 1e-3 * count * n * k / us}};
}

}  // namespace fathom::bench
