// Checks of quantisation against QuantizeRun.
#include "bench/fp8_check.cuh"
#include "bench/fp8_gemm_problem.cuh"
#include "cuda/e4m3.h"
#include "products/cuda/quantize_tokens.h"
#include "products/hopper/fp8_gemm.h"
#include "quant/e4m3.h"

namespace fathom::bench {
namespace {

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  int64_t pitch;
  bool ue8m0;
};

// Codes and scales of `tokens` tokens against QuantizeRun; token t of x went to place(t).
template <class F>
int64_t Mismatches(const std::vector<uint16_t>& x, int64_t tokens, int64_t width,
                   const Quantized& q, const F& place) {
  int64_t unequal = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t run = 0; run < Runs(width); ++run) {
      const int64_t size = std::min<int64_t>(128, width - run * 128);
      float values[128];
      uint8_t expected[128];
      for (int64_t i = 0; i < size; ++i) values[i] = FromBf16(x[t * width + run * 128 + i]);
      const float scale = QuantizeRun({values, static_cast<size_t>(size)}, q.ue8m0, expected);
      const float got = q.scales[run * q.pitch + place(t)];
      unequal += !(got == scale || (std::isnan(got) && std::isnan(scale)));
      for (int64_t i = 0; i < size; ++i) {
        unequal += q.codes[place(t) * width + run * 128 + i] != expected[i];
      }
    }
  }
  return unequal;
}

// Every finite number as the largest of a run, and every scale: whether RunScale divides, and
// Reciprocal is, as the division that rounds correctly.
__global__ void CountInexact(uint32_t* inexact) {
  uint32_t count = 0;
  for (uint32_t bits = blockIdx.x * blockDim.x + threadIdx.x; bits < 0x7f800000;
       bits += gridDim.x * blockDim.x) {
    const float largest = __uint_as_float(bits), scale = RunScale(largest, false);
    count += scale != __fdiv_rn(fmaxf(largest, 1e-10f), 448.0f);
    count += Reciprocal(scale) != __frcp_rn(scale);
  }
  atomicAdd(inexact, count);
}

void CheckDivisions() {
  const DeviceArray<uint32_t> inexact(std::vector<uint32_t>{0});
  CountInexact<<<1056, 256>>>(inexact.get());
  BENCH_CHECK(cudaDeviceSynchronize());
  const uint32_t count = inexact.ToHost()[0];
  Expect(count == 0, "quantize: scales and reciprocals that are not the division's", count);
}

}  // namespace

void CheckQuantize() {
  CheckDivisions();
  for (const int64_t width : {7168, 10944, 1536, 16, 1408}) {
    for (const bool ue8m0 : {false, true}) {
      const int64_t tokens = 37, pitch = Fp8ScalePitch(tokens * 3);
      const std::vector<uint16_t> x = RandomBf16(tokens * width, true, 5);
      const DeviceArray<uint16_t> device_x(x);
      const DeviceArray<int32_t> live(std::vector<int32_t>{static_cast<int32_t>(tokens - 2)});
      std::vector<int32_t> places(tokens * 3);
      for (size_t i = 0; i < places.size(); ++i)
        places[i] = static_cast<int32_t>(i * 7 % places.size());
      const DeviceArray<int32_t> device_places(places);
      for (const int copies : {1, 3}) {
        DeviceArray<uint8_t> codes(tokens * 3 * width);
        DeviceArray<float> scales(Runs(width) * pitch);
        Poison(codes);
        LaunchQuantizeTokens({.x = reinterpret_cast<const __nv_bfloat16*>(device_x.get()),
                              .stride = width,
                              .capacity = tokens,
                              .channels = width,
                              .live = live.get(),
                              .places = copies == 3 ? device_places.get() : nullptr,
                              .copies = copies,
                              .out = {codes.get(), scales.get(), pitch, ue8m0}},
                             nullptr);
        BENCH_CHECK(cudaGetLastError());
        BENCH_CHECK(cudaDeviceSynchronize());
        const Quantized q = {codes.ToHost(), scales.ToHost(), pitch, ue8m0};
        int64_t unequal = 0;
        for (int copy = 0; copy < copies; ++copy) {
          unequal += Mismatches(x, tokens - 2, width, q, [&](int64_t t) {
            return copies == 3 ? int64_t{places[t * 3 + copy]} : t;
          });
        }
        if (copies == 1) unequal += q.codes[(tokens - 2) * width] != 0xff;
        Expect(unequal == 0,
               "quantize " + std::to_string(width) + (ue8m0 ? " ue8m0" : "") + " x " +
                   std::to_string(copies) + ": codes and scales that differ",
               static_cast<double>(unequal));
      }
    }
  }
}

}  // namespace fathom::bench
