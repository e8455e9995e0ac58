#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fathom {
namespace {

double YarnScale(double factor, double mscale) {  // g(s, m)
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

std::vector<float> Frequencies(const ModelConfig& config) {  // [rope / 2]
  const int dim = config.qk_rope_head_dim;
  const double base = config.rope_theta;
  std::vector<float> frequencies(static_cast<size_t>(dim / 2));
  for (int i = 0; i < dim / 2; ++i) {
    frequencies[i] = static_cast<float>(std::pow(base, -2.0 * i / dim));
  }
  if (!config.yarn) return frequencies;

  // The dimension that turns `rotations` times over the original context.
  const YarnConfig& yarn = *config.yarn;
  const auto dimension_of = [&](double rotations) {
    return dim *
           std::log(yarn.original_max_position_embeddings / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(base));
  };
  const double low = std::max(std::floor(dimension_of(yarn.beta_fast)), 0.0);
  const double high = std::min(std::ceil(dimension_of(yarn.beta_slow)), dim - 1.0);
  for (int i = 0; i < dim / 2; ++i) {
    const double ramp = std::clamp((i - low) / std::max(high - low, 1e-3), 0.0, 1.0);
    const double extrapolated = std::pow(base, -2.0 * i / dim);
    frequencies[i] =
        static_cast<float>(extrapolated / yarn.factor * ramp + extrapolated * (1 - ramp));
  }
  return frequencies;
}

}  // namespace

std::vector<float> CosSinTable(const ModelConfig& config, int64_t positions) {
  const std::vector<float> frequencies = Frequencies(config);
  const auto half = static_cast<int64_t>(frequencies.size());
  double scale = 1;
  if (config.yarn) {
    const YarnConfig& yarn = *config.yarn;
    scale = yarn.mscale && yarn.mscale_all_dim ? YarnScale(yarn.factor, *yarn.mscale) /
                                                     YarnScale(yarn.factor, *yarn.mscale_all_dim)
                                               : YarnScale(yarn.factor, 1);
  }
  std::vector<float> table(static_cast<size_t>(positions * 2 * half));
  for (int64_t p = 0; p < positions; ++p) {
    float* cosines = table.data() + p * 2 * half;
    for (int64_t i = 0; i < half; ++i) {
      // The angle is rounded to fp32, as every implementation of these models does.
      const double angle = static_cast<float>(p) * frequencies[static_cast<size_t>(i)];
      cosines[i] = static_cast<float>(std::cos(angle) * scale);
      cosines[half + i] = static_cast<float>(std::sin(angle) * scale);
    }
  }
  return table;
}

float SoftmaxScale(const ModelConfig& config) {
  double scale = 1.0 / std::sqrt(static_cast<double>(config.qk_head_dim()));
  if (config.yarn && config.yarn->mscale_all_dim) {
    const double g = YarnScale(config.yarn->factor, *config.yarn->mscale_all_dim);
    scale *= g * g;
  }
  return static_cast<float>(scale);
}

}  // namespace fathom
