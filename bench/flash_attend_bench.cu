// flash_attend_bench check | time: expanded attention against fp32, and its speed beside the
// machine's limits from the same run. Prints a table; --json FILE writes the same as JSON.
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>

#include "bench/report.cuh"
#include "ops/attend_expanded/flash_attend_cuda.h"

namespace fathom::bench {
namespace {

constexpr int kRestMs = 250, kLaunches = 16;  // before a time; of a replay
constexpr double kTolerance = 5e-3;           // weights and output are rounded to BF16: 2^-9 each
constexpr int kQuery = kFlashNope + kFlashRope, kKv = kFlashNope + kFlashValue;

JsonObject json;  // that --json writes

// A row of `tokens` tokens from position `begin` on, and its context.
struct Problem {
  Problem(int heads, int tokens, int begin, uint64_t seed = 1)
      : heads(heads),
        tokens(tokens),
        context(begin + tokens),
        q(size_t(tokens) * heads * kQuery),
        kv(size_t(context) * heads * kKv),
        rope(size_t(context) * kFlashRope),
        out(size_t(tokens) * heads * kFlashValue),
        lse(size_t(tokens) * heads) {
    Randomize(q, 4 * seed);
    Randomize(kv, 4 * seed + 1);
    Randomize(rope, 4 * seed + 2);
    std::vector<int32_t> host(tokens);
    for (int i = 0; i < tokens; ++i) host[i] = begin + i;
    positions.reset(new DeviceArray<int32_t>(host));
    BENCH_CHECK(cudaDeviceSynchronize());
  }
  // Tokens [first, first + some) against keys [from, from + count) of the context.
  void Launch(int from, int count, int first, int some, cudaStream_t stream = nullptr) const {
    const ContextPiece piece = {
        .begin = from, .count = count, .token_begin = first, .tokens = some};
    FlashAttendParams p = Params();
    p.kv = kv.get() + size_t(from) * heads * kKv;
    p.rope = rope.get() + size_t(from) * kFlashRope;
    p.context = count;
    p.pieces = {&piece, 1};
    LaunchFlashAttend(p, stream);
  }
  void Launch(int from, int count, cudaStream_t stream = nullptr) const {
    Launch(from, count, 0, tokens, stream);
  }
  // Rows from `first` to `last` in one launch: row i has tokens, and as its whole context keys,
  // [borders[i], borders[i + 1]).
  void LaunchRows(const std::vector<int>& borders, size_t first, size_t last,
                  cudaStream_t stream = nullptr) const {
    std::vector<ContextPiece> pieces;
    for (size_t i = first; i < last; ++i) {
      const int count = borders[i + 1] - borders[i];
      pieces.push_back(
          {.count = count, .at = borders[i], .token_begin = borders[i], .tokens = count});
    }
    FlashAttendParams p = Params();
    p.pieces = pieces;
    LaunchFlashAttend(p, stream);
  }
  // Every row begins at position 0.
  void PlaceRows(const std::vector<int>& borders) {
    std::vector<int32_t> host(tokens);
    for (size_t i = 0; i + 1 < borders.size(); ++i) {
      std::iota(host.begin() + borders[i], host.begin() + borders[i + 1], 0);
    }
    BENCH_CHECK(cudaMemcpy(positions->get(), host.data(), host.size() * 4, cudaMemcpyHostToDevice));
  }
  FlashAttendParams Params() const {
    return {.q = q.get(),
            .positions = positions->get(),
            .kv = kv.get(),
            .rope = rope.get(),
            .tokens = tokens,
            .heads = heads,
            .context = context,
            .scale = 0.0721688f,
            .out = out.get(),
            .lse = lse.get()};
  }

  int heads, tokens, context;
  DeviceArray<__nv_bfloat16> q, kv, rope, out;
  DeviceArray<float> lse;
  std::unique_ptr<DeviceArray<int32_t>> positions;
};

// A block per token and head, in fp32 throughout; `p` has the whole context.
__global__ void __launch_bounds__(128)
    FlashOracle(FlashAttendParams p, float* scores, float* out, float* lse) {
  const int64_t token = blockIdx.x, head = blockIdx.y, pair = token * p.heads + head;
  const int keys = p.positions[token] + 1;
  float* s = scores + pair * p.context;
  const auto* q = static_cast<const __nv_bfloat16*>(p.q) + pair * kQuery;
  const auto* kv = static_cast<const __nv_bfloat16*>(p.kv) + head * kKv;
  const auto* rope = static_cast<const __nv_bfloat16*>(p.rope);
  __shared__ float partial[128];
  float max = -INFINITY;
  for (int key = static_cast<int>(threadIdx.x); key < keys; key += 128) {
    float sum = 0;
    for (int i = 0; i < kQuery; ++i) {
      const __nv_bfloat16 k = i < kFlashNope ? kv[int64_t{key} * p.heads * kKv + i]
                                             : rope[int64_t{key} * kFlashRope + i - kFlashNope];
      sum += __bfloat162float(q[i]) * __bfloat162float(k);
    }
    s[key] = sum * p.scale;
    max = fmaxf(max, s[key]);
  }
  partial[threadIdx.x] = max;
  __syncthreads();
  for (int i = 0; i < 128; ++i) max = fmaxf(max, partial[i]);
  float total = 0, sum = 0;
  for (int key = 0; key < keys; ++key) {
    const float weight = expf(s[key] - max);
    total += weight;
    sum += weight * __bfloat162float(kv[int64_t{key} * p.heads * kKv + kFlashNope + threadIdx.x]);
  }
  out[pair * kFlashValue + threadIdx.x] = sum / total;
  if (threadIdx.x == 0) lse[pair] = max + logf(total);
}

bool Check(int heads, int tokens, int begin, int chunk) {
  const Problem p(heads, tokens, begin);
  BENCH_CHECK(cudaMemset(p.out.get(), 0xee, p.out.size() * 2));
  BENCH_CHECK(cudaMemset(p.lse.get(), 0xee, p.lse.size() * 4));
  for (int from = 0; from < p.context; from += chunk) {
    p.Launch(from, std::min(chunk, p.context - from));
  }
  BENCH_CHECK(cudaDeviceSynchronize());
  DeviceArray<float> scores(size_t(tokens) * heads * p.context);
  DeviceArray<float> want(p.out.size()), want_lse(p.lse.size());
  FlashOracle<<<dim3(tokens, heads), 128>>>(p.Params(), scores.get(), want.get(), want_lse.get());
  BENCH_CHECK(cudaGetLastError());
  const auto got = p.out.ToHost();
  const auto expected = want.ToHost(), got_lse = p.lse.ToHost(), expected_lse = want_lse.ToHost();
  double worst = 0, worst_lse = 0;
  for (size_t pair = 0; pair < got_lse.size(); ++pair) {
    double difference = 0, norm = 0;
    for (size_t i = pair * kFlashValue; i < (pair + 1) * kFlashValue; ++i) {
      const double d = double(__bfloat162float(got[i])) - expected[i];
      difference += d * d;
      norm += double(expected[i]) * expected[i];
    }
    const double error = std::sqrt(difference / norm);
    const double lse_error = std::fabs(got_lse[pair] - expected_lse[pair]);
    worst = error <= worst ? worst : error;  // NaN stays
    worst_lse = lse_error <= worst_lse ? worst_lse : lse_error;
  }
  // Each merge rounds the output once more.
  const bool ok = worst < 2 * kTolerance && worst_lse < 1e-3;
  std::printf("heads %3d, tokens %5d from %5d, chunks of %5d: %s, error %.2e, lse %.2e\n", heads,
              tokens, begin, chunk, ok ? "ok" : "FAILED", worst, worst_lse);
  std::fflush(stdout);
  json.Add("\"check heads %d, tokens %d, begin %d, chunk %d\": {\"ok\": %s, \"error\": %.3e}",
           heads, tokens, begin, chunk, ok ? "true" : "false", std::isnan(worst) ? -1.0 : worst);
  return ok;
}

// Some of the tokens alone, in smaller blocks: bits must not change.
bool CheckCompany() {
  const Problem p(40, 300, 400);
  p.Launch(0, p.context);
  BENCH_CHECK(cudaDeviceSynchronize());
  const auto together = p.out.ToHost();
  bool same = true;
  for (const int first : {0, 37, 250}) {
    const int count = 50;
    BENCH_CHECK(cudaMemset(p.out.get(), 0xee, p.out.size() * 2));
    p.Launch(0, p.context, first, count);
    BENCH_CHECK(cudaDeviceSynchronize());
    const auto alone = p.out.ToHost();
    for (size_t i = size_t(first) * p.heads * kFlashValue;
         i < size_t(first + count) * p.heads * kFlashValue; ++i) {
      same &= __bfloat16_as_ushort(alone[i]) == __bfloat16_as_ushort(together[i]);
    }
  }
  std::printf("same bits alone: %s\n", same ? "ok" : "FAILED");
  json.Add("\"check same bits alone\": {\"ok\": %s}", same ? "true" : "false");
  return same;
}

// Rows of a launch, in blocks of 128 tokens, and each alone, some in smaller blocks: bits must not
// change.
bool CheckRows() {
  Problem p(40, 508, 0);
  const std::vector<int> borders = {0, 77, 377, 378, 508};
  p.PlaceRows(borders);
  p.LaunchRows(borders, 0, 4);
  BENCH_CHECK(cudaDeviceSynchronize());
  const auto together = p.out.ToHost();
  BENCH_CHECK(cudaMemset(p.out.get(), 0xee, p.out.size() * 2));
  for (size_t i = 0; i < 4; ++i) p.LaunchRows(borders, i, i + 1);
  BENCH_CHECK(cudaDeviceSynchronize());
  const auto alone = p.out.ToHost();
  const bool same = std::memcmp(alone.data(), together.data(), alone.size() * 2) == 0;
  std::printf("same bits in a launch of several rows: %s\n", same ? "ok" : "FAILED");
  json.Add("\"check same bits in a launch of several rows\": {\"ok\": %s}",
           same ? "true" : "false");
  return same;
}

// What no token sees may be NaN, and tokens may come in any order.
bool CheckNan() {
  Problem p(20, 130, 40);
  std::vector<int32_t> positions(p.tokens);
  for (int i = 0; i < p.tokens; ++i) positions[i] = 40 + (i * 37) % 100;
  BENCH_CHECK(cudaMemcpy(p.positions->get(), positions.data(), positions.size() * 4,
                         cudaMemcpyHostToDevice));
  p.Launch(0, p.context);
  BENCH_CHECK(cudaDeviceSynchronize());
  const auto clean = p.out.ToHost();
  BENCH_CHECK(cudaMemset(p.kv.get() + size_t(140) * p.heads * kKv, 0xff,
                         size_t(p.context - 140) * p.heads * kKv * 2));
  BENCH_CHECK(cudaMemset(p.rope.get() + size_t(140) * kFlashRope, 0xff,
                         size_t(p.context - 140) * kFlashRope * 2));
  BENCH_CHECK(cudaMemset(p.out.get(), 0xee, p.out.size() * 2));
  p.Launch(0, p.context);
  BENCH_CHECK(cudaDeviceSynchronize());
  const auto again = p.out.ToHost();
  bool same = true;
  for (size_t i = 0; i < clean.size(); ++i) {
    same &= __bfloat16_as_ushort(clean[i]) == __bfloat16_as_ushort(again[i]);
  }
  std::printf("NaN behind the last position: %s\n", same ? "ok" : "FAILED");
  json.Add("\"check NaN behind the last position\": {\"ok\": %s}", same ? "true" : "false");
  return same;
}

// Blocks compute several items each, in an order that differs from run to run: bits must not
// change.
bool CheckRepeats() {
  Problem p(48, 1100, 0);
  const std::vector<int> borders = {0, 300, 301, 1000, 1100};
  p.PlaceRows(borders);
  std::vector<__nv_bfloat16> first;
  bool same = true;
  for (int i = 0; i < 20; ++i) {
    BENCH_CHECK(cudaMemset(p.out.get(), 0xee, p.out.size() * 2));
    for (int launch = 0; launch < 3; ++launch) p.LaunchRows(borders, 0, 4);
    BENCH_CHECK(cudaDeviceSynchronize());
    const auto out = p.out.ToHost();
    if (i == 0) first = out;
    same &= std::memcmp(out.data(), first.data(), out.size() * 2) == 0;
  }
  std::printf("same bits each time: %s\n", same ? "ok" : "FAILED");
  json.Add("\"check same bits each time\": {\"ok\": %s}", same ? "true" : "false");
  return same;
}

bool CheckAll() {
  bool ok = true;
  for (const int tokens : {1, 63, 64, 65, 127, 128, 129, 200, 300}) {
    ok &= Check(2, tokens, 0, 1 << 20);
  }
  for (const int begin : {1, 100, 127, 128, 500}) ok &= Check(3, 200, begin, 1 << 20);
  for (const int chunk : {64, 128, 192, 256}) ok &= Check(2, 300, 250, chunk);
  ok &= Check(16, 700, 0, 512);
  ok &= Check(1, 2000, 2000, 1024);
  ok &= Check(40, 300, 100, 256);
  ok &= Check(90, 300, 0, 1 << 20);  // several items a block
  ok &= Check(12, 2000, 0, 512);     // of which many see nothing
  ok &= CheckCompany();
  ok &= CheckRows();
  ok &= CheckRepeats();
  ok &= CheckNan();
  return ok;
}

void Time(int heads, int tokens, int begin, double peak) {
  const Problem p(heads, tokens, begin);
  const double us = MedianOfRested(
      kRestMs, kLaunches, [&](int, cudaStream_t stream) { p.Launch(0, p.context, stream); });
  const double visible = double(tokens) * begin + double(tokens) * (tokens + 1) / 2;
  const double tflops = 2 * visible * heads * (kQuery + kFlashValue) / us * 1e-6;
  std::printf("%5d %6d %6d %9.1f %7.1f %5.1f\n", heads, tokens, begin, us, tflops,
              100 * tflops / peak);
  std::fflush(stdout);
  json.Add(
      "\"heads %d, tokens %d, begin %d\": {\"us\": %.2f, \"tflops\": %.1f, "
      "\"share_of_matrix\": %.3f}",
      heads, tokens, begin, us, tflops, tflops / peak);
}

// Prompts of equal lengths in one launch.
void TimeRows(int heads, int rows, int tokens, double peak) {
  Problem p(heads, rows * tokens, 0);
  std::vector<int> borders;
  for (int i = 0; i <= rows; ++i) borders.push_back(i * tokens);
  p.PlaceRows(borders);
  const double us = MedianOfRested(kRestMs, kLaunches, [&](int, cudaStream_t stream) {
    p.LaunchRows(borders, 0, rows, stream);
  });
  const double visible = double(rows) * tokens * (tokens + 1) / 2;
  const double tflops = 2 * visible * heads * (kQuery + kFlashValue) / us * 1e-6;
  std::printf("%5d %2d x %4d          %5.1f %7.1f %5.1f\n", heads, rows, tokens, us, tflops,
              100 * tflops / peak);
  json.Add(
      "\"heads %d, %d rows of %d tokens\": {\"us\": %.2f, \"tflops\": %.1f, "
      "\"share_of_matrix\": %.3f}",
      heads, rows, tokens, us, tflops, tflops / peak);
}

void TimeAll() {
  const double peak = MatrixPeak();
  json.Add("\"limits\": {\"matrix_tflops\": %.1f}", peak);
  std::printf("wgmma %.0f TFLOPS\nheads tokens  begin        us  TFLOPS wgmma%%\n", peak);
  for (const int tokens : {512, 1024, 4096, 16384}) Time(16, tokens, 0, peak);
  Time(16, 2048, 6144, peak);
  Time(16, 512, 7680, peak);
  Time(128, 1024, 0, peak);
  Time(128, 4096, 0, peak);
  Time(128, 1024, 7168, peak);
  TimeRows(16, 4, 1024, peak);
  TimeRows(16, 16, 256, peak);
  TimeRows(128, 4, 1024, peak);
}

}  // namespace
}  // namespace fathom::bench

int main(int argc, char** argv) {
  using namespace fathom::bench;
  std::vector<std::string> args(argv + 1, argv + argc);
  const std::string file = TakeJsonFile(args);
  const std::string mode = args.empty() ? "" : args.back();
  if (mode != "check" && mode != "time") {
    std::fprintf(stderr, "usage: flash_attend_bench check | time [--json FILE]\n");
    return 2;
  }
  bool ok = true;
  if (mode == "check") ok = CheckAll();
  if (mode == "time") TimeAll();
  if (!file.empty()) json.Write(file);
  return ok ? 0 : 1;
}
