#include "base/rng.h"

#include <cmath>

namespace fathom {

float Rng::Normal() {  // Box-Muller; 1 - u lies in (0, 1], so that the logarithm is finite
  const float radius = std::sqrt(-2.0f * std::log(1.0f - Uniform()));
  return radius * std::cos(6.28318530718f * Uniform());
}

}  // namespace fathom
