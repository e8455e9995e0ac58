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

void CheckCodes(FewProblem& problem, int64_t parts, bool special, const std::string& name) {
  const auto of_codes = [&](const std::string& what, bool wanted) {
    const bool same =
        parts == 2 ? SameBits(problem.OfCodes<float>(), problem.Few(Fp8FewTokensOutput::kSilu))
                   : SameBits(problem.OfCodes<uint16_t>(), Bf16Of(problem.Many()));
    Expect(same == wanted, what + name, same != wanted);
  };
  of_codes("few: codes, the bits of many, ", true);
  if (parts == 1 || special) return;
  problem.ChangeCode();  // which the product of BF16 does not see
  of_codes("few: another code is noticed, ", false);
}

}  // namespace

// Weights held and streamed, half runs and tiles, chains, two parts, blocks of several tiles.
void CheckFew() {
  for (const auto& [parts, n, k] : {std::tuple{1, 576, 2048},
                                    {1, 3072, 2048},
                                    {1, 7168, 1536},
                                    {1, 7168, 16384},
                                    {1, 5008, 144},
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
      const bool same = SameBits(problem.Few(Fp8FewTokensOutput::kF32), problem.Many());
      Expect(same, "few: the bits of many, " + name, !same);
      if (Fp8FewCodesFit(w.weights())) CheckCodes(problem, parts, tokens == 3, name);
    }
  }
}

}  // namespace fathom::bench
