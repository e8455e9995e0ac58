// Products of few tokens have the bits of quantising and multiplying many: quantised on the way
// (fp8_few_tokens.h), or before (fp8_few_codes.h).
#include "bench/fp8_check.cuh"
#include "bench/fp8_gemm_problem.cuh"
#include "products/cuda/quantize_tokens.h"
#include "products/hopper/fp8_few_codes.h"
#include "products/hopper/fp8_few_tokens.h"
#include "products/hopper/fp8_gemm.h"

namespace fathom::bench {
namespace {

// Some tokens, of which the last are not live, and what each product makes of them.
class FewProblem {
 public:
  FewProblem(const WeightsData& w, int64_t tokens)
      : w_(w.weights()),
        tokens_(tokens),
        out_(w.parts * w.part_out),
        x_(RandomBf16(tokens * w.in, tokens == 3, 25)),
        live_(std::vector<int32_t>{static_cast<int32_t>(tokens - tokens / 4)}),
        codes_(tokens * w.in),
        scales_(Runs(w.in) * Fp8ScalePitch(tokens)) {
    LaunchQuantizeTokens({.x = x_.get(),
                          .stride = w_.in,
                          .capacity = tokens_,
                          .channels = w_.in,
                          .live = live_.get(),
                          .out = {codes_.get(), scales_.get(), Fp8ScalePitch(tokens_), false}},
                         nullptr);
  }

  Fp8Tokens quantized() const {
    return {codes_.get(), scales_.get(), tokens_, w_.in, Fp8ScalePitch(tokens_)};
  }
  void ChangeCode() {  // of the last live token
    const int64_t last = (tokens_ - tokens_ / 4) * w_.in - 1;
    BENCH_CHECK(cudaMemset(codes_.get() + last, 0x7e, 1));
  }

  // F32 [tokens, parts * part_out].
  std::vector<float> Many() const {
    return Output(out_, [&](float* y) {
      LaunchFp8Gemm({.x = quantized(),
                     .w = w_,
                     .groups = {.counts = live_.get(), .capacity = tokens_},
                     .out = y,
                     .out_stride = out_,
                     .output = Fp8GemmOutput::kF32},
                    nullptr);
    });
  }
  // F32, of silu [tokens, part_out].
  std::vector<float> Few(Fp8FewTokensOutput output) const {
    const int64_t width = output == Fp8FewTokensOutput::kSilu ? w_.part_out : out_;
    return Output(width, [&](float* y) {
      LaunchFp8FewTokens({.x = x_.get(),
                          .x_stride = w_.in,
                          .tokens = tokens_,
                          .live = live_.get(),
                          .w = w_,
                          .output = output,
                          .y = y,
                          .y_stride = width},
                         nullptr);
    });
  }
  // Of two parts: the codes, and after them the scales, of silu(gate) * up; as many make them, and
  // as they are made of what few do.
  std::vector<uint8_t> ManyGated() const {
    return Codes([&](const QuantizedOut& to) {
      LaunchFp8GemmSilu({.x = quantized(),
                         .w = w_,
                         .groups = {.counts = live_.get(), .capacity = tokens_},
                         .out = to.codes,
                         .out_scales = to.scales,
                         .out_scale_pitch = to.scale_pitch},
                        nullptr);
    });
  }
  std::vector<uint8_t> CodesOf(const std::vector<float>& gated) const {
    const DeviceArray<float> x(gated);
    return Codes([&](const QuantizedOut& to) {
      LaunchQuantizeTokens({.x = x.get(),
                            .x_f32 = true,
                            .stride = w_.part_out,
                            .capacity = tokens_,
                            .channels = w_.part_out,
                            .live = live_.get(),
                            .out = to},
                           nullptr);
    });
  }
  // What it stores, which is BF16 or, of two parts, F32.
  template <class T>
  std::vector<T> OfCodes() const {
    return Output<T>(w_.part_out, [&](T* y) {
      LaunchFp8FewCodes(
          {.x = quantized(), .live = live_.get(), .w = w_, .y = y, .y_stride = w_.part_out},
          nullptr);
    });
  }

 private:
  template <class T = float, class F>
  std::vector<T> Output(int64_t width, const F& launch) const {
    const DeviceArray<T> y(tokens_ * width);
    Poison(y);
    launch(y.get());
    BENCH_CHECK(cudaDeviceSynchronize());
    return y.ToHost();
  }
  template <class F>
  std::vector<uint8_t> Codes(const F& launch) const {
    const int64_t end = (tokens_ * w_.part_out + 15) / 16 * 16, pitch = Fp8ScalePitch(tokens_);
    const DeviceArray<uint8_t> y(end + Runs(w_.part_out) * pitch * int64_t{sizeof(float)});
    Poison(y);
    launch({y.get(), reinterpret_cast<float*>(y.get() + end), pitch, false});
    BENCH_CHECK(cudaDeviceSynchronize());
    return y.ToHost();
  }

  Fp8Weights w_;
  int64_t tokens_, out_;
  DeviceArray<uint16_t> x_;
  DeviceArray<int32_t> live_;
  DeviceArray<uint8_t> codes_;
  DeviceArray<float> scales_;
};

template <class T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Rounded; what nobody wrote stays.
std::vector<uint16_t> Bf16Of(const std::vector<float>& values) {
  std::vector<uint16_t> bf16;
  for (const float value : values) {
    uint32_t word;
    std::memcpy(&word, &value, 4);
    bf16.push_back(word == 0xffffffff ? 0xffff : std::isnan(value) ? 0x7fff : ToBf16(value));
  }
  return bf16;
}

// Codes in, against many; then with another code, which must be noticed.
void CheckCodes(FewProblem& problem, int64_t parts, bool special, const std::string& name) {
  std::vector<uint8_t> gated;
  std::vector<uint16_t> bf16;
  if (parts == 2) gated = problem.ManyGated();
  if (parts == 1) bf16 = Bf16Of(problem.Many());
  const auto same = [&] {
    return parts == 2 ? SameBits(problem.CodesOf(problem.OfCodes<float>()), gated)
                      : SameBits(problem.OfCodes<uint16_t>(), bf16);
  };
  const bool equal = same();
  Expect(equal, "few: codes, the bits of many, " + name, !equal);
  if (special) return;
  problem.ChangeCode();
  const bool noticed = !same();
  Expect(noticed, "few: another code is noticed, " + name, !noticed);
}

}  // namespace

// Weights held and streamed, half runs and tiles, chains, two parts, blocks of several tiles.
void CheckFew() {
  for (const auto& [parts, n, k] : {std::tuple{1, 576, 2048},
                                    {1, 3072, 2048},
                                    {1, 7168, 1536},
                                    {1, 7168, 16384},
                                    {1, 7168, 20480},
                                    {1, 5008, 144},
                                    {1, 9008, 3456},
                                    {2, 2928, 1408},
                                    {1, 2112, 7168},
                                    {1, 24576, 1536},
                                    {1, 40000, 512},
                                    {2, 18432, 1024},
                                    {2, 10944, 2048},
                                    {2, 1008, 512},
                                    {2, 24000, 512}}) {
    const WeightsData w(1, parts, n, k, 15);
    for (const int64_t tokens : {1, 2, 3, 4, 5, 8}) {
      FewProblem problem(w, tokens);
      const std::string name = "M " + std::to_string(tokens) + " N " + std::to_string(parts * n) +
                               " K " + std::to_string(k);
      if (tokens <= kFp8FewDenseTokens) {
        const bool same = SameBits(problem.Few(Fp8FewTokensOutput::kF32), problem.Many());
        Expect(same, "few: the bits of many, " + name, !same);
      }
      if (Fp8FewCodesFit(w.weights())) CheckCodes(problem, parts, tokens == 3, name);
    }
  }
}

}  // namespace fathom::bench
