// Times of FP8 products of few tokens, as decode steps have them, by each kernel that can.
#pragma once

#include "bench/fp8_gemm_problem.cuh"
#include "products/hopper/fp8_few_codes.h"
#include "products/hopper/fp8_few_tokens.h"

namespace fathom::bench {

// One matrix, or (two parts) gate and up.
class FewTimes {
 public:
  FewTimes(int64_t tokens, int64_t parts, int64_t n, int64_t k)
      : tokens_(tokens),
        parts_(parts),
        n_(n),
        k_(k),
        sets_(1, tokens, parts, n, k),
        x_(tokens * k),
        gated_(parts == 2 ? tokens * n : 0),
        codes_(tokens * n),
        scales_(Runs(n) * Fp8ScalePitch(tokens)),
        live_(std::vector<int32_t>{static_cast<int32_t>(tokens)}) {
    Randomize(x_, 1);
  }

  // BF16 in, quantised on the way; codes in, for few tokens, where they can be; and for many.
  void Time(Report& report, int rest_ms) const {
    const auto add = [&](const char* name, const auto& launch) {
      const double us = MedianOfRested(rest_ms, sets_.size(), launch);
      report.Add(ProductName(parts_ == 2 ? "silu" : "dense", tokens_, parts_ * n_, k_, name),
                 Rates(us, 1, tokens_, parts_ * n_, k_, 2));
    };
    if (tokens_ <= kFp8FewDenseTokens) {
      add("few", [&](int i, cudaStream_t stream) { LaunchFew(i, stream); });
    }
    if (Fp8FewCodesFit(sets_.w[0]->weights())) {
      add("few codes", [&](int i, cudaStream_t stream) { LaunchFewCodes(i, stream); });
    }
    add("many", [&](int i, cudaStream_t stream) { LaunchMany(i, stream); });
  }

 private:
  void* y() const { return parts_ == 2 ? static_cast<void*>(gated_.get()) : sets_.out.get(); }

  void LaunchFew(int i, cudaStream_t stream) const {
    LaunchFp8FewTokens(
        {.x = x_.get(),
         .x_stride = k_,
         .tokens = tokens_,
         .live = live_.get(),
         .w = sets_.w[i]->weights(),
         .output = parts_ == 2 ? Fp8FewTokensOutput::kSilu : Fp8FewTokensOutput::kBF16,
         .y = y(),
         .y_stride = n_},
        stream);
  }
  void LaunchFewCodes(int i, cudaStream_t stream) const {
    LaunchFp8FewCodes({.x = sets_.x[i]->tokens(),
                       .live = live_.get(),
                       .w = sets_.w[i]->weights(),
                       .y = y(),
                       .y_stride = n_},
                      stream);
  }
  void LaunchMany(int i, cudaStream_t stream) const {
    const Fp8TokenGroups groups = {.counts = live_.get(), .capacity = tokens_};
    if (parts_ == 1) {
      return LaunchFp8Gemm({.x = sets_.x[i]->tokens(),
                            .w = sets_.w[i]->weights(),
                            .groups = groups,
                            .out = y(),
                            .out_stride = n_},
                           stream);
    }
    LaunchFp8GemmSilu({.x = sets_.x[i]->tokens(),
                       .w = sets_.w[i]->weights(),
                       .groups = groups,
                       .out = codes_.get(),
                       .out_scales = scales_.get(),
                       .out_scale_pitch = Fp8ScalePitch(tokens_)},
                      stream);
  }

  const int64_t tokens_, parts_, n_, k_;
  const Sets sets_;
  DeviceArray<__nv_bfloat16> x_;
  const DeviceArray<float> gated_;
  const DeviceArray<uint8_t> codes_;
  const DeviceArray<float> scales_;
  const DeviceArray<int32_t> live_;
};

// V2-Lite's and V3's.
inline void TimeAllFew(Report& report, int rest_ms) {
  constexpr int64_t kShapes[][3] = {
      {1, 3072, 2048},  {1, 576, 2048},   {1, 2048, 2048}, {1, 1536, 7168}, {1, 24576, 1536},
      {1, 7168, 16384}, {1, 7168, 18432}, {1, 4096, 7168}, {1, 7168, 2048}, {2, 18432, 7168}};
  for (const int64_t tokens : {1, 2, 4, 8}) {
    for (const auto& [parts, n, k] : kShapes) FewTimes(tokens, parts, n, k).Time(report, rest_ms);
  }
}

}  // namespace fathom::bench
