// What the checks of FP8 kernels share.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "bench/gpu_bench.cuh"

namespace fathom::bench {

inline int failures = 0;

inline void Expect(bool ok, const std::string& name, double error) {
  std::printf("%s %s: %.3g\n", ok ? "ok  " : "FAIL", name.c_str(), error);
  std::fflush(stdout);
  failures += !ok;
}

inline float FromBf16(uint16_t bits) {
  const uint32_t word = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &word, 4);
  return value;
}
inline uint16_t ToBf16(float x) {
  uint32_t word;
  std::memcpy(&word, &x, 4);
  if (std::isnan(x)) return static_cast<uint16_t>(word >> 16 | 0x40);
  return static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}
template <class T>
void Poison(const DeviceArray<T>& array) {
  BENCH_CHECK(cudaMemset(array.get(), 0xff, array.size() * sizeof(T)));
}

// Normal numbers; with `special`, runs of NaN, infinities, zeros, subnormals and far ranges too.
inline std::vector<uint16_t> RandomBf16(size_t size, bool special, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values(size);
  for (uint16_t& value : values) value = ToBf16(normal(random));
  if (!special) return values;
  for (size_t run = 0; run + 128 <= size; run += 128) {
    uint16_t* const v = values.data() + run;
    switch (run / 128 % 12) {
      case 1: v[5] = 0x7fc1; break;    // NaN
      case 2: v[127] = 0xffc1; break;  // NaN with a sign
      case 3: v[9] = 0x7f80; break;    // infinity
      case 4: v[0] = 0xff80; break;    // with a sign
      case 5: std::fill_n(v, 128, uint16_t{0}); break;
      case 6: std::fill_n(v, 128, uint16_t{0x8001}); break;  // smallest subnormals
      case 7:
        for (int i = 0; i < 128; ++i) v[i] = ToBf16(1e30f * (i - 60));
        break;
      case 8:
        for (int i = 0; i < 128; ++i) v[i] = ToBf16(std::ldexp(1.0f + i / 128.0f, -i / 8));
        break;
      case 9:
        v[3] = 0x7f80;
        v[4] = 0x7fc0;
        v[5] = 0xffc0;
        break;
      case 10:
        for (int i = 0; i < 128; ++i) v[i] = ToBf16(i * 1e-12f);
        break;
      default: break;
    }
  }
  return values;
}

void CheckQuantize();  // fp8_quantize_check.cu
void CheckFew();       // fp8_few_check.cu

}  // namespace fathom::bench
