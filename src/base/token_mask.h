// Which tokens may come next, as bits.
#pragma once

#include <cstdint>

namespace fathom {

// In words of 32 bits, the lowest first: bit `id % 32` of word `id / 32` is 1 where the token may
// come next.
constexpr int64_t MaskWords(int64_t vocab) {
  return (vocab + 31) / 32;
}

}  // namespace fathom
