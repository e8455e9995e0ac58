#include "ops/test_weights.h"

#include <algorithm>
#include <cmath>

#include "ops/test_hopper_sum.h"
#include "products/hopper/fp8_chains.h"
#include "quant/e4m3.h"

namespace fathom {

TestMatrix::TestMatrix(DType dtype, int64_t out, int64_t in, uint64_t seed)
    : TestMatrix(dtype, out, in, seed,
                 Normals(out * in, seed, dtype == DType::kF8E4M3 ? 60 : 0.1f)) {}

TestMatrix::TestMatrix(DType dtype, int64_t out, int64_t in, uint64_t seed,
                       const std::vector<float>& numbers)
    : values(dtype, {out, in}, numbers) {
  weight = StoredWeight(values);
  if (dtype != DType::kF8E4M3) return;
  const ScaleGroups& tiles = weight.format.scales;
  const int64_t outputs = tiles.outputs.Count(out), channels = tiles.channels.Count(in);
  Rng rng(seed + 1);
  std::vector<float> tile_scales(outputs * channels);
  for (float& scale : tile_scales) scale = 0.001f + 0.003f * rng.Uniform();
  scales = TestTensor(DType::kF32, {outputs, channels}, tile_scales);
  weight.scales = scales;
}

std::unique_ptr<PackedWeight> Pack(const TestBackend& backend, const std::vector<Parts>& matrices,
                                   PackOptions options) {
  std::vector<WeightSource> sources;
  for (const Parts& parts : matrices) sources.push_back({parts});
  auto packed = backend.ops->pack(backend.stream(),
                                  {sources, options.exact_activations, options.scale_ue8m0});
  CHECK(packed.ok(), "{}", packed.status().ToString());
  return std::move(packed).value();
}

std::vector<float> Dense(const Parts& parts) {
  std::vector<float> dense;
  for (const WeightTensor& part : parts) {
    for (int64_t output = 0; output < part.values.dim(0); ++output) {
      for (int64_t channel = 0; channel < part.values.dim(1); ++channel) {
        dense.push_back(Dequantize(part, output, channel));
      }
    }
  }
  return dense;
}

std::vector<Fp8Sums> SumsOf(const TestBackend& backend) {
  if (backend.ops->name != "cuda-hopper" || backend.activations == Fp8Activations::kExact) {
    return {Fp8Sums::kReference};
  }
  return {Fp8Sums::kReference, Fp8Sums::kHopper};
}

std::vector<float> Fp8Product(const std::vector<float>& x, const Parts& parts, bool scale_ue8m0,
                              Fp8Sums sums, int chains) {
  std::vector<float> out;
  const int64_t in = static_cast<int64_t>(x.size());
  for (const WeightTensor& part : parts) {
    const ScaleGroups& tiles = part.format.scales;
    for (int64_t output = 0; output < part.values.dim(0); ++output) {
      float total = -0.0f, y = 0;
      int chain = 0, left = 0;
      for (int64_t begin = 0, end; begin < in; begin = end, --left) {
        if (left == 0 && sums == Fp8Sums::kHopper) {
          const auto runs = static_cast<int32_t>((in + kScaleTile - 1) / kScaleTile);
          left = Fp8RunsOfChain(runs, chain++, chains).count;
          if (begin > 0) total += y, y = 0;
        }
        const int64_t tile = tiles.channels.Of(begin);
        end = tiles.channels.End(tile, in);
        std::vector<uint8_t> codes(end - begin), w;
        for (int64_t k = begin; k < end; ++k) {
          w.push_back(part.values.As<uint8_t>()[output * part.values.stride(0) +
                                                k * part.values.stride(1)]);
        }
        const float scale = QuantizeRun({&x[begin], codes.size()}, scale_ue8m0, codes.data());
        const float both = scale * LoadFloat(part.scales, tiles.outputs.Of(output), tile);
        if (sums == Fp8Sums::kHopper) {
          y = std::fma(HopperSum(codes, w), both, y);
          continue;
        }
        float sum = 0;
        for (size_t k = 0; k < w.size(); ++k) sum += kE4M3Values[codes[k]] * kE4M3Values[w[k]];
        y += sum * both;
      }
      out.push_back(total + y);
    }
  }
  return out;
}

std::vector<float> SiluProduct(const std::vector<float>& gate_up, DType gate_up_type, DType type) {
  const std::vector<float> x = Rounded(gate_up, gate_up_type);
  std::vector<float> product(x.size() / 2);
  for (size_t i = 0; i < product.size(); ++i) {
    product[i] = x[i] / (1 + std::exp(-x[i])) * x[product.size() + i];
  }
  return Rounded(product, type);
}

std::vector<float> ExactProduct(const std::vector<float>& x, const Parts& parts, DType weights) {
  const std::vector<float> w = Rounded(Dense(parts), weights);
  std::vector<float> out;
  for (size_t at = 0; at < w.size(); at += x.size()) {
    double sum = 0;
    for (size_t k = 0; k < x.size(); ++k) sum += double{x[k]} * w[at + k];
    out.push_back(static_cast<float>(sum));
  }
  return out;
}

}  // namespace fathom
