// In which order Hopper's FP8 products add up a long sum.
#pragma once

#include <cstdint>

namespace fathom {

// A dense product's runs (of 128 channels) are added in order. Where there are many of them and few
// outputs they are so many chains instead, each of which is added up for itself, and the chains'
// sums are added in order: several blocks share such a product. It follows from the matrix alone,
// as it decides bits. Experts, and gate and up, have one chain.
inline int Fp8Chains(int64_t out, int64_t in) {
  const int64_t blocks = (out + 63) / 64, runs = (in + 127) / 128;
  if (runs < 32) return 1;  // blocks that meet take longer than they spare
  // An H200 runs so many clusters of 4, 3 and 2 blocks at once.
  return blocks <= 30 ? 4 : blocks <= 42 ? 3 : blocks <= 66 ? 2 : 1;
}

struct Fp8Runs {
  int32_t first, count;
  constexpr int32_t end() const { return first + count; }
};
// The runs of one of a sum's chains.
inline constexpr Fp8Runs Fp8RunsOfChain(int32_t runs, int32_t chain, int32_t chains) {
  const int32_t first = runs * chain / chains;
  return {first, runs * (chain + 1) / chains - first};
}

}  // namespace fathom
