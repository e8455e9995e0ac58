// Checks of quantisation, alone and behind RMSNorm, against QuantizeRun.
#include "bench/fp8_check.cuh"
#include "ops/linear/fp8_gemm_cuda.h"
#include "ops/linear/quantize_rows_cuda.h"
#include "quant/e4m3.h"

namespace fathom::bench {
namespace {

int64_t Runs(int64_t channels) {
  return (channels + 127) / 128;
}

// Codes and scales of `rows` against QuantizeRun; row r of the input went to row place(r).
template <class F>
int64_t Mismatches(const std::vector<uint16_t>& x, int64_t rows, int64_t width, bool ue8m0,
                   const std::vector<uint8_t>& codes, const std::vector<float>& scales,
                   int64_t pitch, const F& place) {
  int64_t unequal = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t run = 0; run < Runs(width); ++run) {
      const int64_t size = std::min<int64_t>(128, width - run * 128);
      float values[128];
      uint8_t expected[128];
      for (int64_t i = 0; i < size; ++i) values[i] = FromBf16(x[row * width + run * 128 + i]);
      const float scale = QuantizeRun({values, static_cast<size_t>(size)}, ue8m0, expected);
      const float got = scales[run * pitch + place(row)];
      unequal += !(got == scale || (std::isnan(got) && std::isnan(scale)));
      for (int64_t i = 0; i < size; ++i) {
        unequal += codes[place(row) * width + run * 128 + i] != expected[i];
      }
    }
  }
  return unequal;
}

}  // namespace

void CheckQuantize() {
  for (const int64_t width : {7168, 10944, 1536, 16, 1408}) {
    for (const bool ue8m0 : {false, true}) {
      const int64_t rows = 37, pitch = Fp8ScalePitch(rows * 3);
      const std::vector<uint16_t> x = RandomBf16(rows * width, true, 5);
      const DeviceArray<uint16_t> device_x(x);
      const DeviceArray<int32_t> live(std::vector<int32_t>{static_cast<int32_t>(rows - 2)});
      std::vector<int32_t> places(rows * 3);
      for (size_t i = 0; i < places.size(); ++i)
        places[i] = static_cast<int32_t>(i * 7 % places.size());
      const DeviceArray<int32_t> device_places(places);
      for (const int copies : {1, 3}) {
        DeviceArray<uint8_t> codes(rows * 3 * width);
        DeviceArray<float> scales(Runs(width) * pitch);
        Poison(codes);
        LaunchQuantizeRows({.x = reinterpret_cast<const __nv_bfloat16*>(device_x.get()),
                            .stride = width,
                            .capacity = rows,
                            .channels = width,
                            .live = live.get(),
                            .places = copies == 3 ? device_places.get() : nullptr,
                            .copies = copies,
                            .out = {codes.get(), scales.get(), pitch, ue8m0}},
                           nullptr);
        BENCH_CHECK(cudaGetLastError());
        BENCH_CHECK(cudaDeviceSynchronize());
        const std::vector<uint8_t> q = codes.ToHost();
        int64_t unequal = 0;
        for (int copy = 0; copy < copies; ++copy) {
          unequal += Mismatches(
              x, rows - 2, width, ue8m0, q, scales.ToHost(), pitch,
              [&](int64_t r) { return copies == 3 ? int64_t{places[r * 3 + copy]} : r; });
        }
        if (copies == 1) unequal += q[(rows - 2) * width] != 0xff;
        Expect(unequal == 0,
               "quantize " + std::to_string(width) + (ue8m0 ? " ue8m0" : "") + " x " +
                   std::to_string(copies) + ": codes and scales that differ",
               static_cast<double>(unequal));
      }
    }
  }
}

void CheckNorm() {
  for (const int64_t width : {7168, 2048, 512, 16384, 1536}) {
    const int64_t rows = 9, pitch = Fp8ScalePitch(rows);
    const std::vector<uint16_t> x = RandomBf16(rows * width, false, 6);
    const std::vector<uint16_t> residual = RandomBf16(rows * width, false, 7);
    std::vector<float> weight(width);
    for (int64_t i = 0; i < width; ++i) weight[i] = 0.5f + static_cast<float>(i % 7) / 5;
    const DeviceArray<uint16_t> device_x(x), device_residual(residual), normed(rows * width);
    const DeviceArray<float> device_weight(weight), scales(Runs(width) * pitch);
    const DeviceArray<int32_t> live(std::vector<int32_t>{static_cast<int32_t>(rows - 1)});
    const DeviceArray<uint8_t> codes(rows * width);
    const auto bf16 = [](const DeviceArray<uint16_t>& a) {
      return reinterpret_cast<__nv_bfloat16*>(a.get());
    };
    LaunchNormQuantize({.x = bf16(device_x),
                        .residual = bf16(device_residual),
                        .weight = device_weight.get(),
                        .eps = 1e-6f,
                        .x_stride = width,
                        .capacity = rows,
                        .width = width,
                        .live = live.get(),
                        .normed = bf16(normed),
                        .out = {codes.get(), scales.get(), pitch, false}},
                       nullptr);
    BENCH_CHECK(cudaGetLastError());
    BENCH_CHECK(cudaDeviceSynchronize());
    const std::vector<uint16_t> out = normed.ToHost(), sums = device_residual.ToHost();
    double worst = 0;
    for (int64_t row = 0; row + 1 < rows; ++row) {
      std::vector<float> sum(width);
      double squares = 0;
      for (int64_t i = 0; i < width; ++i) {
        sum[i] =
            FromBf16(ToBf16(FromBf16(x[row * width + i]) + FromBf16(residual[row * width + i])));
        squares += static_cast<double>(sum[i]) * sum[i];
        if (FromBf16(sums[row * width + i]) != sum[i]) worst = INFINITY;
      }
      const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-6);
      for (int64_t i = 0; i < width; ++i) {
        const double wanted = sum[i] * factor * weight[i];
        worst = std::max(
            worst, std::fabs(FromBf16(out[row * width + i]) - wanted) / (std::fabs(wanted) + 1e-6));
      }
    }
    Expect(worst < 4.1e-3, "norm " + std::to_string(width) + ": greatest relative error", worst);
    const int64_t unequal = Mismatches(out, rows - 1, width, false, codes.ToHost(), scales.ToHost(),
                                       pitch, [](int64_t r) { return r; });
    Expect(unequal == 0, "norm " + std::to_string(width) + ": codes of its output that differ",
           static_cast<double>(unequal));
  }
}

}  // namespace fathom::bench
