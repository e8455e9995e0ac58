#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/rng.h"
#include "cpu/amx.h"
#include "products/cpu/panel_dot.h"

namespace fathom {
namespace {

constexpr int64_t kMost = 2 * kAmxTokens;

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
  for (int64_t groups = kAmxGroups; groups <= kScaleTile / kGroup; groups += kAmxGroups) {
    const Problem run(groups);
    for (const int64_t tokens : {kAmxTokens, kMost}) {
      alignas(64) float acc[kMost * kPanel], expected[kMost * kPanel];
      std::fill(acc, acc + tokens * kPanel, 0.25f);
      std::fill(expected, expected + tokens * kPanel, 0.25f);
      BeginAmx();
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

}  // namespace
}  // namespace fathom
