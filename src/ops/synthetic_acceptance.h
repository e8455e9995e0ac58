// Which drafts stand in a benchmark whose weights are random, so that no guess is ever right.
#pragma once

#include <cstdint>

#include "base/rng.h"

namespace fathom {

// Whether the draft of `position` stands if a share of them does: by the first word of
// Philox4x32-10 with key (slot, 0) and counter (position, 1, 0, 0), which nothing else draws.
constexpr bool StandsByChance(double share, int32_t slot, int32_t position) {
  const uint32_t word =
      Philox4x32({static_cast<uint32_t>(position), 1, 0, 0}, {static_cast<uint32_t>(slot), 0})[0];
  return word < share * 0x1p32;
}

}  // namespace fathom
