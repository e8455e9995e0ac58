// Times of the FP8 products beside the device's own limits and cuBLASLt, medians of graph replays
// with inputs rotated past the L2.
//
//     fp8_gemm_bench FILE.json CASE...     cases: limits v3 large small few masked grouped uneven
//     silu chains other library
#include <cmath>
#include <random>

#include "bench/cublaslt_product.h"
#include "bench/fp8_few_bench.cuh"
#include "bench/fp8_gemm_problem.cuh"
#include "ops/moe_experts/grouped_gemm_cuda.h"
#include "products/cuda/quantize_tokens.h"

namespace fathom::bench {
namespace {

Report report;
constexpr int kRestMs = 250;

using Tiles = std::vector<Fp8Tile>;
const Tiles kFewTokens = {Fp8Tile::kAuto,   Fp8Tile::k64x32,       Fp8Tile::k64x64,
                          Fp8Tile::k64x128, Fp8Tile::k64x64Chains, Fp8Tile::k64x128Chains};
const Tiles kSomeTokens = {Fp8Tile::kAuto,         Fp8Tile::k64x64,
                           Fp8Tile::k128x64,       Fp8Tile::k128x128,
                           Fp8Tile::k128x192,      Fp8Tile::k64x64Chains,
                           Fp8Tile::k64x128Chains, Fp8Tile::k128x128Chains,
                           Fp8Tile::k128x64Folds,  Fp8Tile::k128x128FoldsPair};
const Tiles kManyTokens = {Fp8Tile::kAuto,        Fp8Tile::k128x64,          Fp8Tile::k128x128,
                           Fp8Tile::k256x128Pair, Fp8Tile::k128x192,         Fp8Tile::k128x256Pair,
                           Fp8Tile::k128x64Folds, Fp8Tile::k128x128FoldsPair};

void TimeDense(int64_t tokens, int64_t n, int64_t k, const Tiles& tiles) {
  const Sets sets(1, tokens, 1, n, k);
  const DeviceArray<int32_t> live(std::vector<int32_t>{static_cast<int32_t>(tokens)});
  const auto time = [&](Fp8Tile tile, const char* name, bool batch_invariant) {
    const double us = MedianOfRested(kRestMs, sets.size(), [&](int i, cudaStream_t stream) {
      LaunchFp8Gemm({.x = sets.x[i]->tokens(),
                     .w = sets.w[i]->weights(),
                     .groups = {.counts = live.get(), .capacity = tokens},
                     .out = sets.out.get(),
                     .out_stride = n,
                     .batch_invariant = batch_invariant,
                     .tile = tile},
                    stream);
    });
    report.Add(ProductName("dense", tokens, n, k, name), Rates(us, 1, tokens, n, k, 2));
  };
  for (const Fp8Tile tile : tiles) {
    if (tile == Fp8Tile::kAuto || Suits(tile, sets.w[0]->weights())) time(tile, NameOf(tile), true);
  }
  if (Fp8ChainsOf(sets.w[0]->weights()) > 1) time(Fp8Tile::kAuto, "not invariant", false);
}

// V3's products by the tiles that the engine takes: whole, and divided over 2, 4 and 8 GPUs.
void TimeV3() {
  const auto time = [](int64_t n, int64_t k) {
    for (const int64_t tokens : {64, 128, 256, 4096}) TimeDense(tokens, n, k, {Fp8Tile::kAuto});
  };
  for (const int64_t gpus : {1, 2, 4, 8}) {
    time(24576 / gpus, 1536), time(7168, 16384 / gpus);  // queries, o
    time(4096 / gpus, 7168);                             // gate and up of the shared expert
    if (gpus > 1) time(7168, 2048 / gpus);               // its down, which is whole an eighth of o
  }
  for (const int64_t n : {2112, 1536, 576}) time(n, 7168);
}

// Products that several blocks share.
void TimeChains() {
  for (const auto& [n, k] : {std::pair{576, 7168},
                             {1536, 7168},
                             {2112, 7168},
                             {4096, 7168},
                             {2048, 2048},
                             {3648, 2048},
                             {2048, 10944}}) {
    for (const int64_t tokens : {1, 16, 64}) TimeDense(tokens, n, k, kFewTokens);
    for (const int64_t tokens : {128, 256, 512}) TimeDense(tokens, n, k, kSomeTokens);
    for (const int64_t tokens : {1024, 4096}) TimeDense(tokens, n, k, kManyTokens);
  }
}

void TimeLarge() {
  TimeDense(4096, 7168, 16384, kManyTokens);
  TimeDense(4096, 24576, 1536, kManyTokens);
  TimeDense(4096, 7168, 2048, kManyTokens);
  TimeDense(512, 7168, 16384, kManyTokens);
  TimeDense(256, 7168, 16384, kManyTokens);
}

void TimeSmall() {
  TimeDense(64, 24576, 1536, kFewTokens);
  TimeDense(64, 7168, 16384, kFewTokens);
  TimeDense(64, 1536, 7168, kFewTokens);
  TimeDense(32, 36864, 7168, kFewTokens);
  TimeDense(128, 24576, 1536, kSomeTokens);
  TimeDense(128, 7168, 16384, kSomeTokens);
  TimeDense(128, 1536, 7168, kSomeTokens);
}

// Experts of equally many tokens: sorted by expert, or each with room for `capacity`.
struct GroupShape {
  int64_t experts, tokens, capacity, n, k;
};
void TimeGroups(const GroupShape& shape, const Tiles& tiles) {
  const auto& [experts, tokens, capacity, n, k] = shape;
  const bool sorted = capacity == tokens;
  const Sets sets(experts, capacity, 1, n, k);
  const DeviceArray<int32_t> counts(
      std::vector<int32_t>(static_cast<size_t>(experts), static_cast<int32_t>(tokens)));
  std::vector<int32_t> starts;
  for (int64_t e = 0; e < experts; ++e) starts.push_back(static_cast<int32_t>(e * tokens));
  const DeviceArray<int32_t> begins(starts);
  for (const Fp8Tile tile : tiles) {
    if (tile != Fp8Tile::kAuto && !Suits(tile, sets.w[0]->weights())) continue;
    const double us = MedianOfRested(kRestMs, sets.size(), [&](int i, cudaStream_t stream) {
      LaunchFp8Gemm({.x = sets.x[i]->tokens(),
                     .w = sets.w[i]->weights(),
                     .groups = {.counts = counts.get(),
                                .begins = sorted ? begins.get() : nullptr,
                                .capacity = capacity,
                                .typical = tokens},
                     .out = sets.out.get(),
                     .out_stride = n,
                     .tile = tile},
                    stream);
    });
    report.Add(std::to_string(experts) + " " +
                   ProductName(sorted ? "sorted" : "masked", tokens, n, k, NameOf(tile)),
               Rates(us, experts, tokens, n, k, 2));
  }
}

void TimeGrouped() {
  TimeGroups({4, 8192, 8192, 4096, 7168}, kManyTokens);
  TimeGroups({4, 8192, 8192, 7168, 2048}, kManyTokens);
  TimeGroups({8, 4096, 4096, 4096, 7168}, kManyTokens);
  TimeGroups({8, 4096, 4096, 7168, 2048}, kManyTokens);
}

void TimeMasked() {
  TimeGroups({4, 256, 512, 4096, 7168}, kManyTokens);
  TimeGroups({4, 256, 512, 7168, 2048}, kManyTokens);
  TimeGroups({8, 64, 128, 4096, 7168}, kFewTokens);
  TimeGroups({8, 64, 128, 7168, 2048}, kFewTokens);
  TimeGroups({64, 16, 32, 2816, 2048}, kFewTokens);
  TimeGroups({32, 8, 32, 7168, 2048}, kFewTokens);
}

void TimeSilu(int64_t experts, int64_t tokens, int64_t inter, int64_t k) {
  const Sets sets(experts, tokens, 2, inter, k);
  const DeviceArray<int32_t> counts(
      std::vector<int32_t>(static_cast<size_t>(experts), static_cast<int32_t>(tokens)));
  const DeviceArray<uint8_t> codes(experts * tokens * inter);
  const DeviceArray<float> scales(Runs(inter) * Fp8ScalePitch(experts * tokens));
  for (const auto& [tile, name] : {std::pair{Fp8SiluTile::kAuto, "auto"},
                                   {Fp8SiluTile::k64x64Pair, "64x64 pair"},
                                   {Fp8SiluTile::k128x128, "128x128"},
                                   {Fp8SiluTile::k128x128Pair, "128x128 pair"}}) {
    const double us = MedianOfRested(kRestMs, sets.size(), [&](int i, cudaStream_t stream) {
      LaunchFp8GemmSilu({.x = sets.x[i]->tokens(),
                         .w = sets.w[i]->weights(),
                         .groups = {.counts = counts.get(), .capacity = tokens},
                         .out = codes.get(),
                         .out_scales = scales.get(),
                         .out_scale_pitch = Fp8ScalePitch(experts * tokens),
                         .tile = tile},
                        stream);
    });
    report.Add(std::to_string(experts) + " " + ProductName("silu", tokens, 2 * inter, k, name),
               Rates(us, experts, tokens, 2 * inter, k, 0.5));
  }
}

void TimeAllSilu() {
  TimeSilu(4, 8192, 2048, 7168);
  TimeSilu(4, 256, 2048, 7168);
  TimeSilu(8, 1, 2048, 7168);
  TimeSilu(64, 16, 1408, 2048);
}

// Tokens of V2-Lite's experts: each token draws 6 of 64 routed ones without putting back, in
// proportion to exp(0.4 z), z normal, one per expert; two shared experts have all.
std::vector<int32_t> UnevenCounts(int32_t tokens) {
  constexpr int kRouted = 64, kTopk = 6;
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  std::vector<double> popularity;
  for (int e = 0; e < kRouted; ++e) popularity.push_back(std::exp(0.4 * normal(random)));
  std::vector<int32_t> counts(kRouted);
  for (int32_t t = 0; t < tokens; ++t) {
    std::vector<double> left = popularity;
    for (int j = 0; j < kTopk; ++j) {
      const int e = std::discrete_distribution<int>(left.begin(), left.end())(random);
      left[e] = 0;
      ++counts[e];
    }
  }
  counts.insert(counts.end(), 2, tokens);
  return counts;
}

// Both products of a prompt's experts, tokens sorted by expert.
void TimeUneven(int32_t tokens) {
  constexpr int64_t kHidden = 2048, kInter = 1408;
  const std::vector<int32_t> host_counts = UnevenCounts(tokens);
  std::vector<int32_t> starts(1);
  for (const int32_t count : host_counts) starts.push_back(starts.back() + count);
  const auto experts = static_cast<int64_t>(host_counts.size());
  const int64_t pairs = starts.back();
  const DeviceArray<int32_t> counts(host_counts), begins(starts);
  const TokensData x(pairs, kHidden, 1), product(pairs, kInter, 2);
  const WeightsData gate_up(experts, 2, kInter, kHidden, 3), down(experts, 1, kHidden, kInter, 4);
  const DeviceArray<__nv_bfloat16> out(pairs * kHidden);
  const Fp8TokenGroups groups = {.counts = counts.get(),
                                 .begins = begins.get(),
                                 .capacity = pairs,
                                 .typical = pairs / experts};
  const double each = static_cast<double>(pairs) / static_cast<double>(experts);
  const auto add = [&](const char* kind, int64_t n, int64_t k, const char* tile, double us,
                       double out_bytes) {
    report.Add(std::to_string(experts) + " " + ProductName(kind, pairs, n, k, tile),
               Rates(us, static_cast<double>(experts), each, static_cast<double>(n),
                     static_cast<double>(k), out_bytes));
  };
  for (const auto& [tile, name] : {std::pair{Fp8SiluTile::kAuto, "auto"},
                                   {Fp8SiluTile::k128x128, "128x128"},
                                   {Fp8SiluTile::k128x128Pair, "128x128 pair"}}) {
    const double us = MedianOfRested(kRestMs, 2, [&](int, cudaStream_t stream) {
      LaunchFp8GemmSilu({.x = x.tokens(),
                         .w = gate_up.weights(),
                         .groups = groups,
                         .out = product.codes.get(),
                         .out_scales = product.scales.get(),
                         .out_scale_pitch = Fp8ScalePitch(pairs),
                         .tile = tile},
                        stream);
    });
    add("uneven silu", 2 * kInter, kHidden, name, us, 0.5);
  }
  for (const Fp8Tile tile : kManyTokens) {
    if (tile != Fp8Tile::kAuto && !Suits(tile, down.weights())) continue;
    const double us = MedianOfRested(kRestMs, 2, [&](int, cudaStream_t stream) {
      LaunchFp8Gemm({.x = product.tokens(),
                     .w = down.weights(),
                     .groups = groups,
                     .out = out.get(),
                     .out_stride = kHidden,
                     .tile = tile},
                    stream);
    });
    add("uneven", kHidden, kInter, NameOf(tile), us, 2);
  }
}

void TimeAllUneven() {
  for (const int32_t tokens : {1024, 2048, 4096, 8192}) TimeUneven(tokens);
}

void TimeExperts(int32_t tokens, int32_t topk, int64_t experts, int64_t hidden, int64_t inter) {
  const WeightsData gate_up(experts, 2, inter, hidden, 1), down(experts, 1, hidden, inter, 2);
  DeviceArray<__nv_bfloat16> x(tokens * hidden), out(tokens * hidden);
  Randomize(x, 3);
  constexpr int32_t kLaunches = 4;  // one after the other with other experts, while there are any
  std::vector<int32_t> ids;
  // Distinct experts of a token, all equally loaded.
  for (int64_t i = 0; i < kLaunches * tokens * topk; ++i) {
    ids.push_back(static_cast<int32_t>(i * 7 % experts));
  }
  const DeviceArray<int32_t> device_ids(ids), live(std::vector<int32_t>{tokens});
  const DeviceArray<float> weights(std::vector<float>(ids.size(), 0.125f));
  Fp8ExpertsParams params = {.x = x.get(),
                             .x_stride = hidden,
                             .ids = device_ids.get(),
                             .weights = weights.get(),
                             .live = live.get(),
                             .tokens = tokens,
                             .topk = topk,
                             .gate_up = gate_up.weights(),
                             .down = down.weights(),
                             .out = out.get()};
  const DeviceArray<std::byte> workspace(Fp8ExpertsWorkspace(params));
  params.workspace = {workspace.get(), workspace.size()};
  const double us = MedianOfRested(kRestMs, kLaunches, [&](int i, cudaStream_t stream) {
    params.ids = device_ids.get() + i * tokens * topk;
    LaunchFp8Experts(params, stream);
  });
  const double active = static_cast<double>(std::min<int64_t>(experts, tokens * topk));
  report.Add("experts of " + std::to_string(tokens) + " tokens, " + std::to_string(experts) +
                 " x " + std::to_string(inter) + " x " + std::to_string(hidden),
             {{"us", us},
              {"TFLOPS", 6e-6 * tokens * topk * static_cast<double>(hidden * inter) / us},
              {"weights_GB/s", 3e-3 * active * static_cast<double>(hidden * inter) / us}});
}

void TimeFew() {
  TimeAllFew(report, kRestMs);
}

void TimeOther() {
  for (const int64_t tokens : {1, 128, 4096}) {
    const int64_t width = 7168;
    DeviceArray<__nv_bfloat16> x(tokens * width);
    Randomize(x, 1);
    const DeviceArray<uint8_t> codes(tokens * width);
    const DeviceArray<float> scales(Runs(width) * Fp8ScalePitch(tokens));
    const DeviceArray<int32_t> live(std::vector<int32_t>{static_cast<int32_t>(tokens)});
    const QuantizedOut out = {codes.get(), scales.get(), Fp8ScalePitch(tokens), false};
    const double quantize = MedianOfRested(kRestMs, 16, [&](int, cudaStream_t stream) {
      LaunchQuantizeTokens({.x = x.get(),
                            .stride = width,
                            .capacity = tokens,
                            .channels = width,
                            .live = live.get(),
                            .out = out},
                           stream);
    });
    const double elements = static_cast<double>(tokens * width);
    report.Add("quantize " + std::to_string(tokens) + " x 7168",
               {{"us", quantize}, {"GB/s", 3.03e-3 * elements / quantize}});
  }
  TimeExperts(1, 8, 256, 7168, 2048);
  TimeExperts(128, 8, 256, 7168, 2048);
  TimeExperts(4096, 8, 256, 7168, 2048);
  TimeExperts(1, 6, 64, 2048, 1408);
  TimeExperts(8, 6, 64, 2048, 1408);
  TimeExperts(128, 6, 64, 2048, 1408);
  TimeExperts(4096, 6, 64, 2048, 1408);
}

void TimeLibrary(LibraryFormat format, const char* name, int64_t tokens, int64_t n, int64_t k) {
  const int64_t width = format == LibraryFormat::kBf16 ? 2 * k : k;  // bytes of a token
  const LibraryProduct product(format, tokens, n, k);
  const Sets sets(1, tokens, 1, n, width);
  if (format == LibraryFormat::kBf16) {
    for (int i = 0; i < sets.size(); ++i) {
      for (const DeviceArray<uint8_t>* codes : {&sets.x[i]->codes, &sets.w[i]->codes}) {
        FillRandom<<<2048, 256>>>(reinterpret_cast<__nv_bfloat16*>(codes->get()), codes->size() / 2,
                                  300 + i);
      }
    }
  }
  double best = 0;
  for (int algorithm = 0; algorithm < product.algorithms(); ++algorithm) {
    const auto launch = [&](int i, cudaStream_t stream) {
      return product.Launch(algorithm,
                            {.x = sets.x[i]->codes.get(),
                             .x_scales = sets.x[i]->scales.get(),
                             .w = sets.w[i]->codes.get(),
                             .w_scales = sets.w[i]->scales.get(),
                             .out = sets.out.get()},
                            stream);
    };
    if (!launch(0, nullptr)) continue;
    BENCH_CHECK(cudaDeviceSynchronize());
    const double us = MedianOfRested(kRestMs, sets.size(), launch);
    if (best == 0 || us < best) best = us;
  }
  if (best == 0) {
    std::printf("%s: cuBLASLt offers no algorithm\n", ProductName(name, tokens, n, k, "").c_str());
    return;
  }
  report.Add(ProductName(name, tokens, n, k, "cublasLt"),
             {{"us", best},
              {"TFLOPS", 2e-6 * static_cast<double>(tokens * n) * static_cast<double>(k) / best},
              {"weights_GB/s", 1e-3 * static_cast<double>(n * width) / best}});
}

void TimeAllLibrary() {
  const struct {
    int64_t tokens, n, k;
  } shapes[] = {{4096, 7168, 16384}, {4096, 24576, 1536}, {4096, 7168, 2048}, {4096, 4096, 7168},
                {128, 24576, 1536},  {128, 7168, 16384},  {64, 24576, 1536},  {64, 7168, 16384},
                {64, 1536, 7168},    {1, 24576, 1536},    {1, 7168, 16384},   {1, 7168, 2048}};
  for (const auto& s : shapes) {
    TimeLibrary(LibraryFormat::kBf16, "bf16", s.tokens, s.n, s.k);
    TimeLibrary(LibraryFormat::kFp8, "fp8 tensor", s.tokens, s.n, s.k);
    TimeLibrary(LibraryFormat::kFp8Blocks, "fp8 blocks", s.tokens, s.n, s.k);
  }
}

void TimeLimits() {
  const Bandwidth bandwidth = MeasureBandwidth();
  report.Add(
      "limits",
      {{"read_GB/s", bandwidth.read}, {"copy_GB/s", bandwidth.copy}, {"e4m3_TFLOPS", Fp8Peak()}});
}

}  // namespace
}  // namespace fathom::bench

int main(int argc, char** argv) {
  using namespace fathom::bench;
  const std::vector<Case> cases = {{"limits", TimeLimits},    {"v3", TimeV3},
                                   {"large", TimeLarge},      {"small", TimeSmall},
                                   {"few", TimeFew},          {"masked", TimeMasked},
                                   {"grouped", TimeGrouped},  {"silu", TimeAllSilu},
                                   {"other", TimeOther},      {"library", TimeAllLibrary},
                                   {"uneven", TimeAllUneven}, {"chains", TimeChains}};
  return RunCases("fp8_gemm", argc, argv, cases, report);
}
