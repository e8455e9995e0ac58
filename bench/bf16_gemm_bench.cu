// BF16 products of many tokens: bits against the kernel for few tokens, and times beside cuBLASLt
// and the device's own limits, medians of graph replays with inputs rotated past the L2.
//
//     bf16_gemm_bench FILE.json CASE...     cases: check limits few dense some experts decode
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <set>

#include "bench/bf16_gemm_problem.cuh"
#include "bench/cublaslt_product.h"
#include "products/hopper/bf16_product.h"

namespace fathom::bench {
namespace {

Report report;

int rest_ms = 150;

void Time(const char* kind, const Shape& shape, bool library, const Groups* groups = nullptr) {
  const bool many = shape.tokens >= std::max(int64_t{4096}, 100 * shape.count);
  const double set_bytes = 2.0 * (shape.count * shape.out * shape.in + shape.tokens * shape.in);
  std::vector<std::unique_ptr<Problem>> problems;
  for (int i = 0; i < SetsPastL2(set_bytes); ++i) {
    problems.push_back(std::make_unique<Problem>(shape, 50 + 2 * i));
  }
  const int sets = static_cast<int>(problems.size());
  const DeviceArray<int32_t> live(std::vector<int32_t>{static_cast<int32_t>(shape.tokens)});
  DeviceArray<uint8_t> y(problems[0]->OutBytes());
  const auto params = [&](int i) {
    Bf16ProductParams p = problems[i]->Params(live.get(), y.get());
    if (groups != nullptr) groups->Put(p);
    return p;
  };
  const double tokens = static_cast<double>(groups == nullptr ? shape.tokens : groups->total);
  const double bytes = shape.bytes(
      tokens, static_cast<double>(groups == nullptr ? shape.count : groups->with_tokens));
  const auto add = [&](const char* name, double us) {
    report.Add(Name(kind, static_cast<int64_t>(tokens), shape, name),
               {{"us", us},
                {"TFLOPS", 1e-6 * shape.operations(tokens) / us},
                {"GB/s", 1e-3 * bytes / us}});
  };
  for (const TileName& tile : kTiles) {
    if (tile.tile == Bf16Tile::kAuto || (many && tile.tile <= Bf16Tile::k128x64)) continue;
    add(tile.name, MedianOfRested(rest_ms, sets, [&](int i, cudaStream_t stream) {
          LaunchBf16Gemm(params(i), stream, tile.tile);
        }));
  }
  add("engine", MedianOfRested(rest_ms, sets, [&](int i, cudaStream_t stream) {
        LaunchBf16ProductOnHopper(params(i), stream);
      }));
  if (!library) return;
  const LibraryProduct product(LibraryFormat::kBf16, shape.tokens, shape.out, shape.in);
  double best = 1e30;
  for (int a = 0; a < product.algorithms(); ++a) {
    best = std::min(
        best, MedianOfRested(rest_ms, sets, [&](int i, cudaStream_t stream) {
          const auto* x = problems[i]->x.get();
          if (!product.Launch(a, {.x = x, .w = problems[i]->w.get(), .out = y.get()}, stream)) {
            std::exit(1);
          }
        }));
  }
  add("cuBLASLt", best);
}

// Products of a decode step of few tokens, as the engine launches them and as the portable table
// does: `topk` experts a token, or dense and heads.
void TimeFewTokens(const char* kind, const Shape& shape, int64_t topk = 0) {
  Shape stored = shape;
  if (topk > 0) stored.tokens *= topk;
  std::vector<std::unique_ptr<Problem>> problems;
  for (int i = 0; i < SetsPastL2(2.0 * shape.count * shape.out * shape.in); ++i) {
    problems.push_back(std::make_unique<Problem>(stored, 50 + 2 * i));
  }
  const DeviceArray<int32_t> live(std::vector<int32_t>{static_cast<int32_t>(shape.tokens)});
  const std::vector<int32_t> chosen = ChooseExperts(shape.tokens, topk, shape.count);
  const DeviceArray<int32_t> ids(chosen);
  const double matrices = topk > 0
                              ? static_cast<double>(std::set(chosen.begin(), chosen.end()).size())
                              : static_cast<double>(shape.count);
  DeviceArray<uint8_t> y(problems[0]->OutBytes());
  for (const bool hopper : {true, false}) {
    Bf16ProductLaunch& launch = hopper ? LaunchBf16ProductOnHopper : LaunchBf16Product;
    const double us =
        MedianOfRested(rest_ms, static_cast<int>(problems.size()), [&](int i, cudaStream_t stream) {
          Bf16ProductParams p = problems[i]->Params(live.get(), y.get());
          p.tokens = shape.tokens;
          if (topk > 0) {
            p.ids = ids.get(), p.topk = topk, p.shared = SharedOf(shape.count);
            p.x_of_pairs = !shape.silu;
          }
          launch(p, stream);
        });
    report.Add(Name(kind, shape.tokens, shape, hopper ? "engine" : "portable"),
               {{"us", us}, {"GB/s", 2e-3 * matrices * shape.out * shape.in / us}});
  }
}

void TimeFew() {
  rest_ms = 5;
  for (const int64_t tokens : {1, 8}) {
    for (const auto& [out, in] :
         {std::pair{3072, 2048}, {2048, 2048}, {576, 2048}, {2048, 10944}, {5120, 16384}}) {
      TimeFewTokens("dense", {tokens, 1, out, in});
    }
    TimeFewTokens("silu", {tokens, 1, 21888, 2048, true});
    TimeFewTokens("heads 16 x", {tokens, 16, 512, 128});
    TimeFewTokens("heads 16 x", {tokens, 16, 128, 512});
    TimeFewTokens("experts 8 of 66", {tokens, 66, 2816, 2048, true, false, true}, 8);
    TimeFewTokens("experts 8 of 66", {tokens, 66, 2048, 1408, false, false, true}, 8);
    TimeFewTokens("lm_head", {tokens, 1, 102400, 2048, false, true});
  }
}

void TimeDense() {
  for (const auto& [out, in] : {std::pair{7168, 16384},
                                {8192, 8192},
                                {4096, 7168},
                                {3072, 2048},
                                {2048, 2048},
                                {2048, 10944},
                                {576, 2048}}) {
    Time("dense", {4096, 1, out, in}, true);
  }
  Time("silu", {4096, 1, 5632, 2048, true}, false);
  Time("silu", {4096, 1, 21888, 2048, true}, false);
}

void TimeSome() {
  rest_ms = 20;
  Time("dense", {512, 1, 4096, 512}, true);
  for (const int64_t tokens : {1, 8, 32, 64, 128, 256, 512, 1024}) {
    Time("dense", {tokens, 1, 2048, 2048}, true);
    Time("dense", {tokens, 1, 3072, 2048}, true);
  }
  Time("heads 16 x", {512, 16, 512, 128}, false);
  Time("heads 16 x", {512, 16, 128, 512}, false);
}

// V2-Lite's experts: 64 that share 6 a token in proportion to exp(0.4 z), z normal; two have all.
std::vector<int32_t> RoutedSizes(int32_t tokens) {
  std::mt19937 random(7);
  std::lognormal_distribution<double> popularity(0, 0.4);
  std::vector<double> shares(64);
  for (double& share : shares) share = popularity(random);
  const double sum = std::reduce(shares.begin(), shares.end());
  std::vector<int32_t> sizes;
  for (const double share : shares) {
    sizes.push_back(static_cast<int32_t>(std::lround(6 * tokens * share / sum)));
  }
  sizes.insert(sizes.end(), 2, tokens);
  return sizes;
}

void TimeExperts(const std::vector<int32_t>& steps) {
  for (const int32_t tokens : steps) {
    const Groups groups(RoutedSizes(tokens));
    Time("66 experts", {groups.total, 66, 2816, 2048, true, false, true}, false, &groups);
    Time("66 experts", {groups.total, 66, 2048, 1408, false, false, true}, false, &groups);
  }
}

void TimeDecode() {
  rest_ms = 20;
  TimeExperts({32, 128});
  for (const int64_t tokens : {32, 128}) {
    Time("lm_head", {tokens, 1, 102400, 2048, false, true}, true);
    Time("dense", {tokens, 1, 576, 2048}, true);
    Time("heads 16 x", {tokens, 16, 512, 128}, false);
    Time("heads 16 x", {tokens, 16, 128, 512}, false);
  }
}

void TimeLimits() {
  report.Add("limits", {{"read_GB/s", MeasureBandwidth().read}, {"wgmma_TFLOPS", MatrixPeak()}});
}

int failures = 0;

}  // namespace
}  // namespace fathom::bench

int main(int argc, char** argv) {
  using namespace fathom::bench;
  const std::vector<Case> cases = {{"check", [] { failures += CheckBf16Gemm(report); }},
                                   {"few", TimeFew},
                                   {"limits", TimeLimits},
                                   {"dense", TimeDense},
                                   {"some", TimeSome},
                                   {"experts",
                                    [] {
                                      TimeExperts({4096, 2048, 1024, 512});
                                    }},
                                   {"decode", TimeDecode}};
  const int status = RunCases("bf16_gemm", argc, argv, cases, report);
  return failures == 0 ? status : 1;
}
