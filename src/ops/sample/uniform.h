// The random number behind a sampled token: the same in every table and on every rank.
#pragma once

#include <cstdint>

#include "base/rng.h"

namespace fathom {

// Uniform in (0, 1): Philox4x32-10 with key (low, high half of the seed) and counter (position of
// the new token, 0, 0, 0); of its four words the first, at the centre of its interval of 2^-32.
// Verifying a draft takes this same number: verifying is drawing.
constexpr double SampleUniform(uint32_t seed_low, uint32_t seed_high, int32_t position) {
  const uint32_t word =
      Philox4x32({static_cast<uint32_t>(position), 0, 0, 0}, {seed_low, seed_high})[0];
  return (word + 0.5) * 0x1p-32;
}

}  // namespace fathom
