// BF16 products of many rows: bits against the kernel for few rows, and times beside cuBLASLt and
// the device's own limits, medians of graph replays with inputs rotated past the L2.
//
//     bf16_gemm_bench FILE.json CASE...     cases: check limits few dense some experts decode
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "bench/cublaslt_product.h"
#include "bench/fp8_gemm_problem.cuh"
#include "products/hopper/bf16_few_rows.h"
#include "products/hopper/bf16_gemm.h"
#include "products/hopper/bf16_product.h"

namespace fathom::bench {
namespace {

Report report;

struct TileName {
  Bf16Tile tile;
  const char* name;
};
constexpr TileName kTiles[] = {
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
  double operations(double rows) const { return 2.0 * rows * heads() * out * in; }
  // `matrices` are those with rows.
  double bytes(double rows, double matrices) const {
    return 2.0 * matrices * out * in + rows * heads() * (2.0 * in + (f32 ? 4.0 : 2.0) * channels());
  }
};

// Numbers whose sums round, cancel and swamp each other: exponents 40 apart, zeros of both signs.
__global__ void MakeWild(__nv_bfloat16* data, size_t count) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    const uint32_t bits = Mix(i * 7 + 3);
    const float x = __bfloat162float(data[i]);
    data[i] = __float2bfloat16_rn(
        bits % 11 == 0 ? x * 0.0f : ldexpf(x, static_cast<int>(bits / 11 % 41) - 20));
  }
}

int64_t padding = 0;  // between rows

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

// Counts and begins of experts' rows in one buffer each.
struct Groups {
  explicit Groups(const std::vector<int32_t>& sizes)
      : counts(sizes),
        begins(Begins(sizes)),
        total(std::reduce(sizes.begin(), sizes.end())),
        with_rows(std::count_if(sizes.begin(), sizes.end(), [](int32_t n) { return n > 0; })) {}
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
  int64_t total, with_rows;
};
// Some experts have no rows, some many.
std::vector<int32_t> UnevenSizes(int64_t experts, int64_t rows) {
  std::vector<int32_t> sizes;
  int64_t left = rows;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t share = e % 5 == 3 ? 0 : 2 * rows / experts * (1 + e % 7) / 6 + e % 3;
    sizes.push_back(static_cast<int32_t>(std::min(left, share)));
    left -= sizes.back();
  }
  return sizes;
}

std::string Name(const char* kind, int64_t rows, const Shape& s, const char* tile) {
  char text[112];
  std::snprintf(text, sizeof(text), "%s M %lld N %lld K %lld %s", kind,
                static_cast<long long>(rows), static_cast<long long>(s.out),
                static_cast<long long>(s.in), tile);
  return text;
}

constexpr int kPoison = 0xab;
int failures = 0;

// The bytes that a launch leaves in poisoned memory.
template <class F>
std::vector<uint8_t> Result(size_t bytes, const F& launch) {
  DeviceArray<uint8_t> y(bytes);
  BENCH_CHECK(cudaMemset(y.get(), kPoison, bytes));
  launch(y.get());
  BENCH_CHECK(cudaGetLastError());
  BENCH_CHECK(cudaDeviceSynchronize());
  return y.ToHost();
}

void Expect(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b, const Shape& s,
            int64_t live, const char* what) {
  if (a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0) return;
  ++failures;
  size_t bytes = 0;
  for (size_t i = 0; i < a.size(); ++i) bytes += a[i] != b[i];
  std::printf("FAILED %zu of %zu bytes: %s\n", bytes, a.size(), Name(what, live, s, "").c_str());
}

// ||a - b|| / ||b||, of every 13th number.
double ErrorOf(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b, bool f32) {
  double error = 0, norm = 0;
  for (size_t i = 0; i + 4 <= a.size(); i += 52) {
    uint32_t x = 0, y = 0;
    std::memcpy(&x, a.data() + i, f32 ? 4 : 2), std::memcpy(&y, b.data() + i, f32 ? 4 : 2);
    if (!f32) x <<= 16, y <<= 16;
    float u, v;
    std::memcpy(&u, &x, 4), std::memcpy(&v, &y, 4);
    error += (double{u} - v) * (double{u} - v), norm += double{v} * v;
  }
  return std::sqrt(error / norm);
}

// Every tile against one, which must be near the portable kernel's, and the kernel for few rows.
void Check(const Shape& shape, int64_t live, const Groups* groups = nullptr, bool wild = false) {
  const Problem problem(shape, 31, wild);
  const DeviceArray<int32_t> count(std::vector<int32_t>{static_cast<int32_t>(live)});
  const auto params = [&](void* y) {
    Bf16ProductParams p = problem.Params(count.get(), y);
    if (groups != nullptr) groups->Put(p);
    return p;
  };
  const std::vector<uint8_t> expected = Result(
      problem.OutBytes(), [&](void* y) { LaunchBf16Gemm(params(y), nullptr, Bf16Tile::k64x64); });
  const double error = ErrorOf(
      expected, Result(problem.OutBytes(), [&](void* y) { LaunchBf16Product(params(y), nullptr); }),
      shape.f32);
  if (!(error < 1e-3 && !shape.f32) && !(error < 1e-4)) {
    ++failures;
    std::printf("FAILED error %g\n", error);
  }
  for (const TileName& tile : kTiles) {
    Expect(Result(problem.OutBytes(),
                  [&](void* y) {
                    if (!Bf16GemmFits(params(y))) std::abort();
                    LaunchBf16Gemm(params(y), nullptr, tile.tile);
                  }),
           expected, shape, live, tile.name);
  }
  if (groups != nullptr) return;
  const size_t row_bytes = problem.OutBytes() / static_cast<size_t>(shape.tokens);
  for (const int64_t rows : {1, 2, 5, 8, 9, 63, 512}) {
    if (rows > live) break;
    const size_t bytes = static_cast<size_t>(rows) * row_bytes;
    Expect(Result(bytes,
                  [&](void* y) {
                    Bf16ProductParams p = params(y);
                    p.tokens = rows;
                    LaunchBf16ProductOnHopper(p, nullptr);
                  }),
           {expected.begin(), expected.begin() + static_cast<int64_t>(bytes)}, shape, rows,
           "fewer rows");
  }
}

// Distinct experts for each token.
std::vector<int32_t> ChooseExperts(int64_t tokens, int64_t topk, int64_t experts) {
  std::vector<int32_t> chosen;
  uint64_t state = 7;
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<int32_t> ids(static_cast<size_t>(experts));
    std::iota(ids.begin(), ids.end(), 0);
    for (int64_t j = 0; j < topk; ++j) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const bool shared = experts == 66 && j >= topk - 2;
      if (!shared) std::swap(ids[j], ids[j + (state >> 33) % (experts - j - 2)]);
      chosen.push_back(shared ? static_cast<int32_t>(experts - topk + j) : ids[j]);
    }
  }
  return chosen;
}

// Unsorted experts of few tokens against each pair's row alone.
void CheckPairs(const Shape& shape, int64_t live, int64_t topk, bool x_of_pairs) {
  const Problem problem(shape, 71);  // a row for each pair
  const int64_t tokens = shape.tokens / topk;
  const std::vector<int32_t> chosen = ChooseExperts(tokens, topk, shape.count);
  const DeviceArray<int32_t> ids(chosen), one(std::vector<int32_t>{1}),
      count(std::vector<int32_t>{static_cast<int32_t>(live)});
  const std::vector<uint8_t> expected = Result(problem.OutBytes(), [&](void* y) {
    for (int64_t pair = 0; pair < live * topk; ++pair) {
      Bf16ProductParams p = problem.Params(one.get(), y);
      p.x += (x_of_pairs ? pair : pair / topk) * p.x_stride;
      p.w += chosen[static_cast<size_t>(pair)] * shape.out * shape.in;
      p.y = static_cast<uint8_t*>(y) + 2 * pair * p.y_stride;
      p.tokens = 1, p.count = 1;
      LaunchBf16Gemm(p, nullptr, Bf16Tile::k64x64);
    }
  });
  Expect(Result(problem.OutBytes(),
                [&](void* y) {
                  Bf16ProductParams p = problem.Params(count.get(), y);
                  p.ids = ids.get(), p.topk = topk, p.tokens = tokens, p.x_of_pairs = x_of_pairs;
                  LaunchBf16FewRows(p, nullptr);
                }),
         expected, shape, live, "pairs");
}

void CheckAll() {
  padding = 8;
  int cases = 0;
  for (const auto& [out, in] : {std::pair{576, 2048},
                                {2048, 2048},
                                {3072, 2048},
                                {8, 64},
                                {200, 72},
                                {104, 1408},
                                {4096, 512},
                                {2048, 10944},
                                {512, 128}}) {
    for (const auto& [live, tokens] : {std::pair{1, 1},
                                       {8, 8},
                                       {63, 64},
                                       {65, 100},
                                       {128, 128},
                                       {129, 300},
                                       {200, 200},
                                       {1000, 1024},
                                       {4096, 4096}}) {
      if (int64_t{tokens} * out * in > int64_t{20} << 30) continue;
      Check({tokens, 1, out, in}, live), ++cases;
      Check({tokens, 1, out, in, false, true}, live), ++cases;
      Check({tokens, 1, 2 * out, in, true}, live), ++cases;
    }
  }
  for (const int64_t tokens : {1, 3, 8}) {
    for (const int64_t topk : {6, 8}) {
      CheckPairs({tokens * topk, 66, 2816, 2048, true, false, true}, tokens, topk, false);
      CheckPairs({tokens * topk, 66, 2048, 1408, false, false, true}, tokens, topk, true);
      cases += 2;
    }
  }
  CheckPairs({8 * 12, 257, 400, 136, true, false, true}, 5, 12, false), ++cases;
  CheckPairs({8 * 16, 20, 136, 200, false, false, true}, 7, 16, true), ++cases;
  for (const int64_t in : {64, 512, 2048, 16384}) {
    Check({1000, 1, 512, in, false, true}, 1000, nullptr, true), ++cases;
  }
  for (const auto& [out, in] : {std::pair{512, 128}, {128, 512}}) {
    for (const int live : {1, 77, 512}) {
      Check({512, 16, out, in}, live), Check({512, 128, out, in}, live), cases += 2;
    }
  }
  for (const auto& [experts, rows] : {std::pair{64, 24576}, {64, 3000}, {3, 700}, {257, 9000}}) {
    const int64_t inter = experts == 257 ? 200 : 1408, hidden = experts == 257 ? 136 : 2048;
    for (const auto& sizes :
         {std::vector<int32_t>(experts, rows / experts), UnevenSizes(experts, rows)}) {
      const Groups groups(sizes);
      Check({rows, experts, 2 * inter, hidden, true, false, true}, groups.total, &groups), ++cases;
      Check({rows, experts, hidden, inter, false, false, true}, groups.total, &groups), ++cases;
    }
  }
  padding = 0;
  report.Add("check: cases, failures", {{"cases", cases}, {"failures", failures}});
}

// Each measurement begins on a chip that has rested: long products run into the power limit.
int rest_ms = 150;
template <class F>
double MedianOfRested(int sets, const F& launch) {
  std::this_thread::sleep_for(std::chrono::milliseconds(rest_ms));
  return MedianMicroseconds(sets, 7, launch);
}

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
  const double rows = static_cast<double>(groups == nullptr ? shape.tokens : groups->total);
  const double bytes =
      shape.bytes(rows, static_cast<double>(groups == nullptr ? shape.count : groups->with_rows));
  const auto add = [&](const char* name, double us) {
    report.Add(
        Name(kind, static_cast<int64_t>(rows), shape, name),
        {{"us", us}, {"TFLOPS", 1e-6 * shape.operations(rows) / us}, {"GB/s", 1e-3 * bytes / us}});
  };
  for (const TileName& tile : kTiles) {
    if (tile.tile == Bf16Tile::kAuto || (many && tile.tile <= Bf16Tile::k128x64)) continue;
    add(tile.name, MedianOfRested(sets, [&](int i, cudaStream_t stream) {
          LaunchBf16Gemm(params(i), stream, tile.tile);
        }));
  }
  add("engine", MedianOfRested(sets, [&](int i, cudaStream_t stream) {
        LaunchBf16ProductOnHopper(params(i), stream);
      }));
  if (!library) return;
  const LibraryProduct product(LibraryFormat::kBf16, shape.tokens, shape.out, shape.in);
  double best = 1e30;
  for (int a = 0; a < product.algorithms(); ++a) {
    best = std::min(
        best, MedianOfRested(sets, [&](int i, cudaStream_t stream) {
          const auto* x = problems[i]->x.get();
          if (!product.Launch(a, x, nullptr, problems[i]->w.get(), nullptr, y.get(), stream)) {
            std::exit(1);
          }
        }));
  }
  add("cuBLASLt", best);
}

// Products of a decode step of few tokens, as the engine launches them and as the portable table
// does: `topk` experts a token, or dense and heads.
void TimeFewRows(const char* kind, const Shape& shape, int64_t topk = 0) {
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
        MedianOfRested(static_cast<int>(problems.size()), [&](int i, cudaStream_t stream) {
          Bf16ProductParams p = problems[i]->Params(live.get(), y.get());
          p.tokens = shape.tokens;
          if (topk > 0) p.ids = ids.get(), p.topk = topk, p.x_of_pairs = !shape.silu;
          launch(p, stream);
        });
    report.Add(Name(kind, shape.tokens, shape, hopper ? "engine" : "portable"),
               {{"us", us}, {"GB/s", 2e-3 * matrices * shape.out * shape.in / us}});
  }
}

void TimeFew() {
  rest_ms = 5;
  for (const int64_t rows : {1, 8}) {
    for (const auto& [out, in] :
         {std::pair{3072, 2048}, {2048, 2048}, {576, 2048}, {2048, 10944}, {5120, 16384}}) {
      TimeFewRows("dense", {rows, 1, out, in});
    }
    TimeFewRows("silu", {rows, 1, 21888, 2048, true});
    TimeFewRows("heads 16 x", {rows, 16, 512, 128});
    TimeFewRows("heads 16 x", {rows, 16, 128, 512});
    TimeFewRows("experts 8 of 66", {rows, 66, 2816, 2048, true, false, true}, 8);
    TimeFewRows("experts 8 of 66", {rows, 66, 2048, 1408, false, false, true}, 8);
    TimeFewRows("lm_head", {rows, 1, 102400, 2048, false, true});
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
  for (const int64_t rows : {1, 8, 32, 64, 128, 256, 512, 1024}) {
    Time("dense", {rows, 1, 2048, 2048}, true);
    Time("dense", {rows, 1, 3072, 2048}, true);
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

}  // namespace
}  // namespace fathom::bench

int main(int argc, char** argv) {
  using namespace fathom::bench;
  for (int i = 2; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "check") CheckAll();
    if (name == "few") TimeFew();
    if (name == "limits") {
      report.Add("limits",
                 {{"read_GB/s", MeasureBandwidth().read}, {"wgmma_TFLOPS", MatrixPeak()}});
    }
    if (name == "dense") TimeDense();
    if (name == "some") TimeSome();
    if (name == "experts") TimeExperts({4096, 2048, 1024, 512});
    if (name == "decode") TimeDecode();
  }
  if (argc > 1) report.Write(argv[1], "bf16_gemm");
  return failures == 0 ? 0 : 1;
}
