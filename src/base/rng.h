// Random numbers that are a pure function of (key, counter): the same on any rank and any device.
#pragma once

#include <array>
#include <cstdint>

namespace fathom {

// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
constexpr std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// A stream of Philox numbers for host code (simulations, tests, dummy weights).
class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  uint32_t Next() {
    if (used_ == 4) {
      block_ = Philox4x32({static_cast<uint32_t>(index_), static_cast<uint32_t>(index_ >> 32),
                           static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                          {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
      ++index_;
      used_ = 0;
    }
    return block_[used_++];
  }
  float Uniform() { return static_cast<float>(Next() >> 8) * 0x1p-24f; }  // [0, 1)
  // Uniform in [0, n). REQUIRES: n > 0.
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>((uint64_t{Next()} * n) >> 32); }
  float Normal();  // mean 0, variance 1

 private:
  uint64_t seed_, stream_, index_ = 0;
  std::array<uint32_t, 4> block_{};
  int used_ = 4;
};

}  // namespace fathom
