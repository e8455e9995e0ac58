// mla_decode_bench check [NAME] | time [narrow|wide|fp8|parts|steps|splits] | peaks: MLA decode
// against fp32, and its speed beside the machine's limits from the same run. Prints a table; --json
// FILE writes the same as JSON.
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>

#include "bench/mla_decode_check.cuh"
#include "bench/mla_decode_problem.cuh"
#include "bench/report.cuh"

namespace fathom::bench {
namespace {

struct Limits {
  double copy, read, matrix;  // GB/s, GB/s, TFLOPS
};

Limits MeasureLimits() {
  const Bandwidth bandwidth = MeasureBandwidth();
  const Limits limits = {bandwidth.copy, bandwidth.read, MatrixPeak()};
  std::printf("copy %.0f GB/s, read %.0f GB/s, wgmma %.0f TFLOPS\n", limits.copy, limits.read,
              limits.matrix);
  json.Add("\"limits\": {\"copy_gbps\": %.1f, \"read_gbps\": %.1f, \"matrix_tflops\": %.1f}",
           limits.copy, limits.read, limits.matrix);
  return limits;
}

constexpr int kSplitOfStep = -1;  // without batch invariance

struct Timing {
  int heads, rows, context, tokens;
  int split;  // 0: the default; kSplitOfStep
  bool fp8 = false;
  int least_context = 0;  // above 0: rows' contexts are drawn from here to `context`
};

// Of a launch's rows; all launches have the same.
std::vector<int> ContextsOf(const Timing& t) {
  std::vector<int> contexts(t.rows, t.context);
  std::mt19937_64 random(1);
  for (int& context : contexts) {
    if (t.least_context == 0) break;
    context = t.least_context + static_cast<int>(random() % (t.context - t.least_context + 1));
  }
  return contexts;
}

void Time(const Timing& t, const Limits& limits) {
  // Launches take turns through sets of rows that together exceed the L2 several times.
  const std::vector<int> contexts = ContextsOf(t);
  const double positions = std::accumulate(contexts.begin(), contexts.end(), 0.0);
  const double cache_bytes = (t.fp8 ? 644.0 : 1152.0) * positions;
  const int sets = std::max(1, std::min(64, int(512e6 / cache_bytes)));
  std::vector<MlaRow> rows;
  for (int set = 0; set < sets; ++set) {
    for (const int context : contexts) rows.push_back({context, t.tokens});
  }
  MlaProblem problem(t.heads, rows, std::max(t.split, 0), 0, t.fp8);
  if (t.split == kSplitOfStep) problem.SplitForStep(t.rows * t.tokens, t.rows);
  const MlaDecodeSplit& parts = problem.split;
  const auto split_at = [&](const MlaDecodeSplit& of) {
    if (of.parts > 0) return std::max(2, (t.context / 64 + of.parts) / of.parts) * 64;
    return t.context <= of.short_context ? of.short_tokens : of.tokens;
  };
  const int split = split_at(parts);
  const bool usual = split == split_at(MlaDecodeSplitOf(t.heads, problem.max_pages, t.fp8));
  const int tokens = t.rows * t.tokens;
  DeviceArray<int32_t> live(std::vector<int32_t>{tokens});
  const int launches = std::max(sets, 4);
  const double us = MedianMicroseconds(launches, 15, [&](int i, cudaStream_t stream) {
    const int64_t first = int64_t{i % sets} * tokens, pairs = first * t.heads;
    MlaDecodeParams p = problem.Params();
    p.q_latent = static_cast<const __nv_bfloat16*>(p.q_latent) + pairs * kMlaLatent;
    p.q_rope = static_cast<const __nv_bfloat16*>(p.q_rope) + pairs * p.q_rope_stride;
    p.out = static_cast<__nv_bfloat16*>(p.out) + pairs * kMlaLatent;
    p.slots += first, p.positions += first;
    p.live = live.get(), p.tokens = tokens;
    LaunchMlaDecode(p, stream);
  });
  const double pairs = double(tokens) * t.heads;
  const double bytes = cache_bytes + pairs * (1088 + 512) * 2;
  const double flops = positions * t.tokens * t.heads * 2 * (576 + 512);
  const bool mixed = t.least_context > 0;
  const std::string context =
      (mixed ? std::to_string(t.least_context) + "-" : "") + std::to_string(t.context);
  const bool of_step = t.split == kSplitOfStep;
  std::printf("%-5s %5d %5d %8s %6d %6d %9.1f %7.0f %5.1f %7.1f %5.1f%s\n", t.fp8 ? "FP8" : "BF16",
              t.heads, t.rows, context.c_str(), t.tokens, split, us, 1e-3 * bytes / us,
              1e-1 * bytes / us / limits.copy, 1e-6 * flops / us, 1e-4 * flops / us / limits.matrix,
              of_step ? "  of step" : "");
  std::fflush(stdout);
  json.Add(
      "\"%s%sheads %d, rows %d, %s %s, tokens %d, split %d\": {\"us\": %.2f, \"gbps\": %.1f, "
      "\"share_of_copy\": %.3f, \"tflops\": %.1f, \"share_of_matrix\": %.3f, \"default_split\": "
      "%s}",
      of_step ? "step, " : "", t.fp8 ? "FP8, " : "", t.heads, t.rows,
      mixed ? "mixed contexts" : "context", context.c_str(), t.tokens, split, us, 1e-3 * bytes / us,
      1e-3 * bytes / us / limits.copy, 1e-6 * flops / us, 1e-6 * flops / us / limits.matrix,
      usual ? "true" : "false");
}

// Few heads, many, the two caches side by side, and where short contexts are cut.
void TimeNarrow(const Limits& limits) {
  for (const int split : {256, 512, 1024}) {
    Time({16, 128, 4096, 1, split}, limits);
    for (const int rows : {1, 2, 4}) {
      for (const int context : {1024, 4096}) Time({16, rows, context, 1, split}, limits);
    }
    Time({16, 32, 4096, 1, split}, limits);
    Time({16, 8, 32768, 1, split}, limits);
    Time({16, 1, 32768, 1, split}, limits);
    Time({16, 128, 1024, 1, split}, limits);
  }
  for (const int rows : {1, 32, 128}) {
    for (const int tokens : {2, 3, 4, 5, 8}) Time({16, rows, 4096, tokens, 0}, limits);
  }
}
void TimeWide(const Limits& limits) {
  for (const int heads : {32, 64, 128}) Time({heads, 128, 4096, 1, 1024}, limits);
  for (const int split : {1024, 2048, 4096, 8192}) Time({128, 128, 8192, 1, split}, limits);
}
void TimeFp8(const Limits& limits) {
  for (const bool fp8 : {false, true}) {
    for (const int rows : {1, 4, 32, 128}) {
      for (const int context : {1024, 4096, 8192}) Time({16, rows, context, 1, 512, fp8}, limits);
    }
    Time({16, 8, 32768, 1, 512, fp8}, limits);
    for (const int tokens : {2, 4}) Time({16, 128, 4096, tokens, 512, fp8}, limits);
    Time({64, 128, 4096, 1, 1024, fp8}, limits);
    for (const int rows : {1, 4, 8, 32, 128}) {
      for (const int context : {1024, 4096, 8192}) Time({128, rows, context, 1, 0, fp8}, limits);
    }
    Time({128, 128, 8192, 1, 8192, fp8}, limits);
  }
}
void TimeParts(const Limits& limits) {
  for (const int context : {1024, 2048, 4096}) {
    for (const int split : {128, 256, 512, 1024, 2048}) {
      if (split > context) continue;
      for (const int rows : {1, 4, 32, 128}) Time({128, rows, context, 1, split}, limits);
    }
  }
}

// The default, over the shapes that users of other kernels know, and with parts of unequal size.
void TimeSteps(const Limits& limits) {
  for (const int heads : {16, 32, 64, 128}) {
    for (const int rows : {1, 4, 8, 16, 32, 128}) {
      for (const int context : {1024, 4096, 8192}) Time({heads, rows, context, 1, 0}, limits);
    }
  }
  // More items than blocks, but not twice as many.
  for (const int rows : {144, 160, 200, 240}) Time({16, rows, 4096, 1, 0}, limits);
  Time({16, 100, 4096, 4, 0}, limits);
  Time({.heads = 16, .rows = 200, .context = 8192, .tokens = 1, .split = 0, .least_context = 512},
       limits);
  for (const int context : {4190, 8300}) Time({128, 128, context, 1, 0}, limits);
  // One tile more than rounds of a cluster's blocks hold.
  for (const int rows : {1, 8}) Time({128, rows, 1088, 1, 0}, limits);
  Time({.heads = 128, .rows = 128, .context = 8192, .tokens = 1, .split = 0, .least_context = 512},
       limits);
}

// --no-batch-invariance, beside the default: FlashMLA's shapes, rows of drafts, and long contexts.
void TimeSplits(const Limits& limits) {
  for (const int split : {0, kSplitOfStep}) {
    for (const int rows : {1, 4, 8, 32, 128}) {
      for (const int context : {1024, 4096, 8192}) Time({128, rows, context, 1, split}, limits);
    }
    for (const int heads : {16, 32}) {
      for (const int rows : {1, 8, 32, 128}) {
        for (const int tokens : {1, 2, 4, 8}) Time({heads, rows, 4096, tokens, split}, limits);
      }
    }
    for (const int heads : {16, 128}) {
      for (const int context : {32768, 65536, 131072}) {
        for (const int rows : {1, 8}) Time({heads, rows, context, 1, split}, limits);
      }
    }
    for (const int rows : {1, 8, 32, 128}) Time({128, rows, 4096, 1, split, true}, limits);
  }
}

void TimeAll(const std::string& only) {
  const Limits limits = MeasureLimits();
  std::printf(
      "cache heads  rows  context tokens  split        us    GB/s  copy%%  TFLOPS wgmma%%\n");
  if (only.empty() || only == "narrow") TimeNarrow(limits);
  if (only.empty() || only == "wide") TimeWide(limits);
  if (only.empty() || only == "fp8") TimeFp8(limits);
  if (only.empty() || only == "parts") TimeParts(limits);
  if (only.empty() || only == "steps") TimeSteps(limits);
  if (only.empty() || only == "splits") TimeSplits(limits);
}

}  // namespace
}  // namespace fathom::bench

int main(int argc, char** argv) {
  using namespace fathom::bench;
  std::vector<std::string> args(argv + 1, argv + argc);
  const std::string file = TakeJsonFile(args);
  const std::string mode = args.empty() ? "" : args[0], only = args.size() > 1 ? args.back() : "";
  if (mode != "check" && mode != "time" && mode != "peaks") {
    std::fprintf(
        stderr,
        "usage: mla_decode_bench check [NAME] | time [narrow|wide|fp8|parts|steps|splits] | peaks "
        "[--json FILE]\n");
    return 2;
  }
  bool ok = true;
  if (mode == "check") ok = Check(only);
  if (mode == "time") TimeAll(only);
  if (mode == "peaks") MeasureLimits();
  if (!file.empty()) json.Write(file);
  return ok ? 0 : 1;
}
