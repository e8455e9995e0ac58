// Linear layers of the CPU table, beside the machine's read bandwidth and multiply-add peak
// measured in the same run. Weights rotate through more memory than caches hold, as a model's do.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "cpu/cpu_device.h"
#include "cpu/peak.h"
#include "ops/ops.h"

namespace fathom {
namespace {

int threads = 0;  // one per core

CpuDevice& Cpu() {
  static CpuDevice device(threads);
  return device;
}

struct Peaks {
  double bandwidth = MeasureReadBandwidth(Cpu().stream().pool(), int64_t{1} << 30);
  ArithmeticPeaks arithmetic = MeasureArithmeticPeaks(Cpu().stream().pool());
};
const Peaks& MachinePeaks() {
  static const Peaks peaks;
  return peaks;
}

struct LinearCase {
  int64_t tokens, out, in;
  WeightFormat format;

  bool bf16() const { return format == WeightFormat::kBF16; }
  double peak() const {
    const ArithmeticPeaks& peaks = MachinePeaks().arithmetic;
    const bool integer = format == WeightFormat::kInt8 || format == WeightFormat::kInt4;
    return (integer ? peaks.int8 : peaks.bf16).value_or(peaks.fp32);
  }
  const Ops& ops() const {
    if (bf16() || format == WeightFormat::kFp8) return CpuOps(Fp8Activations::kExact);
    return CpuIntegerOps(format);
  }
};

std::vector<std::unique_ptr<PackedWeight>> RandomWeights(const LinearCase& c) {
  Rng rng(1);
  std::vector<uint8_t> values(static_cast<size_t>(c.out * c.in * (c.bf16() ? 2 : 1)));
  // No subnormal numbers, which slow some CPUs down and hardly occur in real weights.
  if (!c.bf16()) {
    for (uint8_t& code : values) code = static_cast<uint8_t>(rng.Next() & 0x37) + 8;
  } else {
    BF16* numbers = reinterpret_cast<BF16*>(values.data());
    for (int64_t i = 0; i < c.out * c.in; ++i) numbers[i] = ToBF16(rng.Uniform() + 0.01f);
  }
  const int64_t output_tiles = (c.out + 127) / 128, channel_tiles = (c.in + 127) / 128;
  std::vector<float> scales(static_cast<size_t>(output_tiles * channel_tiles), 0.01f);
  WeightTensor weight = StoredWeight(
      TensorView(values.data(), c.bf16() ? DType::kBF16 : DType::kF8E4M3, {c.out, c.in}));
  if (!c.bf16())
    weight.scales = TensorView(scales.data(), DType::kF32, {output_tiles, channel_tiles});
  const WeightSource source{{weight}};
  constexpr size_t kBytes = size_t{256} << 20;
  std::vector<std::unique_ptr<PackedWeight>> copies;
  for (size_t bytes = 0; bytes < kBytes; bytes += values.size()) {
    auto packed = c.ops().pack(Cpu().stream(), {.matrices = {&source, 1}});
    CHECK(packed.ok(), "{}", packed.status().ToString());
    copies.push_back(*std::move(packed));
  }
  return copies;
}

void Linear(benchmark::State& state, LinearCase c) {
  const auto weights = RandomWeights(c);
  std::vector<float> x(static_cast<size_t>(c.tokens * c.in)),
      y(static_cast<size_t>(c.tokens * c.out));
  Rng rng(2);
  for (float& v : x) v = rng.Normal();
  int32_t live = static_cast<int32_t>(c.tokens);
  LinearArgs args;
  args.x = TensorView(x.data(), DType::kF32, {c.tokens, c.in});
  args.live = TensorView(&live, DType::kI32, {1});
  args.out = TensorView(y.data(), DType::kF32, {c.tokens, c.out});
  args.weight = weights[0].get();
  const Ops& ops = c.ops();
  Buffer workspace(ops.linear.Workspace(Cpu().stream(), args));
  OpContext context{Cpu().stream(), {workspace.data(), workspace.size()}};
  size_t i = 0;
  for (auto _ : state) {
    args.weight = weights[i++ % weights.size()].get();
    ops.linear(context, args);
    benchmark::DoNotOptimize(y.data());
  }
  const double calls = static_cast<double>(state.iterations());
  const double bytes = calls * static_cast<double>(weights[0]->bytes);
  const double flops = calls * 2.0 * static_cast<double>(c.tokens * c.out * c.in);
  const auto rate = [](double n) { return benchmark::Counter(n, benchmark::Counter::kIsRate); };
  state.counters["GB/s"] = rate(bytes * 1e-9);
  state.counters["of_bandwidth"] = rate(bytes / MachinePeaks().bandwidth);
  state.counters["Gop/s"] = rate(flops * 1e-9);
  state.counters["of_peak"] = rate(flops / c.peak());
}

void Register() {
  for (const auto& [name, format] : {std::pair{"fp8", WeightFormat::kFp8},
                                     {"bf16", WeightFormat::kBF16},
                                     {"int8", WeightFormat::kInt8},
                                     {"int4", WeightFormat::kInt4}}) {
    for (const auto& [out, in] : {std::pair<int64_t, int64_t>{2048, 2048}, {7168, 2048}}) {
      for (const int64_t tokens : {1, 2, 4, 8, 12, 48, 512}) {
        benchmark::RegisterBenchmark(
            fmt::format("linear/{}/out:{}/in:{}/tokens:{}", name, out, in, tokens).c_str(), Linear,
            LinearCase{tokens, out, in, format})
            ->UseRealTime()
            ->MeasureProcessCPUTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc == 2) fathom::threads = std::atoi(argv[1]);  // beside Google Benchmark's own flags
  fathom::Register();
  const fathom::ArithmeticPeaks& peaks = fathom::MachinePeaks().arithmetic;
  fmt::print(
      "threads {}, read {:.1f} GB/s; 10^9 operations/s: fp32 {:.0f}, bf16 {:.0f}, int8 {:.0f}\n",
      fathom::Cpu().stream().threads(), fathom::MachinePeaks().bandwidth * 1e-9, peaks.fp32 * 1e-9,
      peaks.bf16.value_or(0) * 1e-9, peaks.int8.value_or(0) * 1e-9);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
