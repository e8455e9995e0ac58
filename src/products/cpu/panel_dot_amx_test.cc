#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "cpu/amx.h"
#include "cpu/subnormals.h"
#include "products/cpu/panel_dot.h"

namespace fathom {
namespace {

constexpr int64_t kMost = 2 * kAmxRows;

// A run of codes and tokens, extreme ones among them.
struct Problem {
  explicit Problem(int64_t groups) : groups(groups) {
    Rng rng(static_cast<uint64_t>(groups));
    for (std::byte& code : codes) code = static_cast<std::byte>(rng.Next());
    for (std::byte& value : values) value = static_cast<std::byte>(rng.Next());
    std::memset(codes, 255, kPanel * kGroup);
    std::memset(values, 128, kScaleTile);  // -128
    for (float& scale : scales) scale = rng.Uniform() - 0.5f;
    for (int32_t& offset : offsets) offset = static_cast<int32_t>(rng.Next()) >> 8;
  }
  DotTile tile() const {
    return {.w = codes, .groups = groups, .scales = scales, .scale_per_output = true};
  }
  DotTokens From(int64_t token) const {
    return {.values = values + token * kScaleTile,
            .scales = scales + token,
            .offsets = offsets + token,
            .sub_run_offsets = nullptr};
  }

  int64_t groups;
  alignas(64) std::byte codes[kScaleTile * kPanel];
  alignas(64) std::byte values[kMost * kScaleTile];
  float scales[kPanel + kMost];
  int32_t offsets[kMost];
};

TEST(Amx, HasTheBitsOfOneToken) {
  if (!HasInt8Amx()) GTEST_SKIP() << "this CPU has no AMX";
  const AmxKernels& amx = AmxKernelsInt8();
  const TokenKernels& one = DotKernelsInt8().direct;
  for (int64_t groups = amx.groups; groups <= kScaleTile / kGroup; groups += amx.groups) {
    const Problem run(groups);
    for (const int64_t tokens : {kAmxRows, kMost}) {
      alignas(64) float acc[kMost * kPanel], expected[kMost * kPanel];
      std::fill(acc, acc + tokens * kPanel, 0.25f);
      std::fill(expected, expected + tokens * kPanel, 0.25f);
      BeginAmx(std::min(tokens, kAmxRows));
      (tokens == kMost ? amx.of_32 : amx.of_16)(run.tile(), run.From(0), acc);
      EndAmx();
      for (int64_t i = 0; i < tokens; ++i) {
        one.kernels[0](run.tile(), run.From(i), expected + i * kPanel);
      }
      EXPECT_EQ(std::memcmp(acc, expected, static_cast<size_t>(tokens * kPanel) * sizeof(float)), 0)
          << groups << " groups, " << tokens << " tokens";
    }
  }
}

// BF16 numbers, records of one or two parts. `any`: of all magnitudes, whose products overflow and
// are subnormal, subnormal ones among them.
struct Bf16Problem {
  Bf16Problem(int parts, int64_t groups, bool any) : parts(parts), groups(groups) {
    Rng rng(static_cast<uint64_t>(groups));
    const auto number = [&] {
      const uint32_t bits = std::bit_cast<uint32_t>(rng.Uniform() - 0.5f) >> 16;
      constexpr uint32_t kInfinite = 0x7f80;
      uint32_t random = static_cast<uint32_t>(rng.Next()) & 0xffff;
      if ((random & kInfinite) == kInfinite) random ^= 0x4000;
      return static_cast<uint16_t>(any ? random : bits);
    };
    for (uint16_t& w : weights) w = number();
    for (uint16_t& v : values) v = number();
    for (float& scale : scales) scale = rng.Uniform() + 0.5f;
  }
  DotTile tile() const {
    return {.w = reinterpret_cast<const std::byte*>(weights),
            .groups = groups,
            .scales = scales,
            .scale_per_output = true};
  }
  DotTokens From(int64_t token) const {
    const uint16_t* from = values + token * parts * kScaleTile;
    return {.values = reinterpret_cast<const std::byte*>(from),
            .scales = parts == 1 ? scales + token : nullptr,
            .offsets = nullptr,
            .sub_run_offsets = nullptr};
  }
  double Exact(int64_t token, int64_t out) const {
    const auto as_double = [](uint16_t bits) {
      return double{std::bit_cast<float>(uint32_t{bits} << 16)};
    };
    double sum = 0;
    for (int64_t c = 0; c < groups * kGroup; ++c) {
      const double w = as_double(weights[(c / 2 * kPanel + out) * 2 + c % 2]);
      for (int part = 0; part < parts; ++part) {
        sum += w * as_double(values[(token * parts + part) * kScaleTile + c]);
      }
    }
    return sum * scales[out] * (parts == 1 ? scales[token] : 1.0f);
  }

  int parts;
  int64_t groups;
  alignas(64) uint16_t weights[kScaleTile * kPanel], values[kMost * 2 * kScaleTile];
  float scales[kPanel + kMost];
};

// Equal, or both NaN.
bool Alike(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

TEST(Amx, HasTheBitsOfOneBf16Token) {
  if (!HasBf16Amx()) GTEST_SKIP() << "this CPU has no AMX_BF16";
  for (const int parts : {1, 2}) {
    const AmxKernels& amx = AmxKernelsBf16(parts == 2);
    const DotKernel one = DotKernelsBf16(parts == 2).direct.kernels[0];
    for (int64_t groups = amx.groups; groups <= kScaleTile / kGroup; groups += amx.groups) {
      for (const bool any : {false, true}) {
        const Bf16Problem run(parts, groups, any);
        alignas(64) float expected[kMost * kPanel] = {};
        const SubnormalsAsZeros scope(true);
        for (int64_t i = 0; i < kMost; ++i) one(run.tile(), run.From(i), expected + i * kPanel);
        for (int64_t i = 0; i < kMost * kPanel && !any; ++i) {
          ASSERT_NEAR(expected[i], run.Exact(i / kPanel, i % kPanel), 5e-5) << i;
        }
        for (const int64_t tokens : {int64_t{1}, int64_t{2}, int64_t{15}, kAmxRows, kMost}) {
          alignas(64) float acc[kMost * kPanel] = {};
          BeginAmx(std::min(tokens, kAmxRows));
          DotTokens x = run.From(0);
          x.end = tokens;
          (tokens == kMost ? amx.of_32 : amx.of_16)(run.tile(), x, acc);
          EndAmx();
          for (int64_t i = 0; i < kMost * kPanel; ++i) {
            const float is = i < tokens * kPanel ? expected[i] : 0.0f;
            ASSERT_TRUE(Alike(acc[i], is)) << acc[i] << " " << is << " " << parts << " parts, "
                                           << groups << " groups, " << tokens << " tokens, " << i;
          }
        }
      }
    }
  }
}

// Rows that others have computed already.
template <class Run>
void ExpectLeavesOutRows(const AmxKernels& amx, const Run& run) {
  for (const DotKernel kernel : {amx.of_16, amx.of_16_ahead}) {
    alignas(64) float all[kMost * kPanel] = {}, some[kMost * kPanel] = {};
    DotTokens x = run.From(0);
    BeginAmx(kAmxRows);
    kernel(run.tile(), x, all);
    x.begin = 3, x.end = 15;
    kernel(run.tile(), x, some);
    EndAmx();
    for (int64_t i = 0; i < kMost * kPanel; ++i) {
      const bool wanted = i / kPanel >= x.begin && i / kPanel < x.end;
      ASSERT_EQ(some[i], wanted ? all[i] : 0.0f) << i;
    }
  }
}

TEST(Amx, LeavesOutRows) {
  if (HasBf16Amx()) {
    for (const int parts : {1, 2}) {
      ExpectLeavesOutRows(AmxKernelsBf16(parts == 2),
                          Bf16Problem(parts, kScaleTile / kGroup, false));
    }
  }
  if (!HasInt8Amx()) GTEST_SKIP() << "this CPU has no AMX";
  ExpectLeavesOutRows(AmxKernelsInt8(), Problem(kScaleTile / kGroup));
}

}  // namespace
}  // namespace fathom
