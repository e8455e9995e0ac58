// Bits of BF16 products: every tile against one, the kernel for few tokens against that of many,
// and both near the portable kernel's.
#include <cstring>
#include <set>

#include "bench/bf16_gemm_problem.cuh"
#include "products/hopper/bf16_few_tokens.h"
#include "products/hopper/bf16_product.h"

namespace fathom::bench {
namespace {

// Some experts have no tokens, some many.
std::vector<int32_t> UnevenSizes(int64_t experts, int64_t tokens) {
  std::vector<int32_t> sizes;
  int64_t left = tokens;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t share = e % 5 == 3 ? 0 : 2 * tokens / experts * (1 + e % 7) / 6 + e % 3;
    sizes.push_back(static_cast<int32_t>(std::min(left, share)));
    left -= sizes.back();
  }
  return sizes;
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

// Every tile against one, which must be near the portable kernel's, and the kernel for few tokens.
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
  const size_t token_bytes = problem.OutBytes() / static_cast<size_t>(shape.tokens);
  for (const int64_t tokens : {1, 2, 5, 8, 9, 63, 512}) {
    if (tokens > live) break;
    const size_t bytes = static_cast<size_t>(tokens) * token_bytes;
    Expect(Result(bytes,
                  [&](void* y) {
                    Bf16ProductParams p = params(y);
                    p.tokens = tokens;
                    LaunchBf16ProductOnHopper(p, nullptr);
                  }),
           {expected.begin(), expected.begin() + static_cast<int64_t>(bytes)}, shape, tokens,
           "fewer tokens");
  }
}

// Unsorted experts of few tokens against each pair alone.
void CheckPairs(const Shape& shape, int64_t live, int64_t topk, bool x_of_pairs) {
  const Problem problem(shape, 71);  // a token for each pair
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
  for (const int64_t shared : std::set<int64_t>{0, SharedOf(shape.count)}) {
    Expect(Result(problem.OutBytes(),
                  [&](void* y) {
                    Bf16ProductParams p = problem.Params(count.get(), y);
                    p.ids = ids.get(), p.topk = topk, p.tokens = tokens;
                    p.x_of_pairs = x_of_pairs, p.shared = shared;
                    LaunchBf16FewTokens(p, nullptr);
                  }),
           expected, shape, live, shared > 0 ? "pairs, shared experts" : "pairs");
  }
}

}  // namespace

int CheckBf16Gemm(Report& report) {
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
  for (const auto& [experts, tokens] : {std::pair{64, 24576}, {64, 3000}, {3, 700}, {257, 9000}}) {
    const int64_t inter = experts == 257 ? 200 : 1408, hidden = experts == 257 ? 136 : 2048;
    for (const auto& sizes :
         {std::vector<int32_t>(experts, tokens / experts), UnevenSizes(experts, tokens)}) {
      const Groups groups(sizes);
      Check({tokens, experts, 2 * inter, hidden, true, false, true}, groups.total, &groups),
          ++cases;
      Check({tokens, experts, hidden, inter, false, false, true}, groups.total, &groups), ++cases;
    }
  }
  padding = 0;
  report.Add("check: cases, failures", {{"cases", cases}, {"failures", failures}});
  return failures;
}

}  // namespace fathom::bench
