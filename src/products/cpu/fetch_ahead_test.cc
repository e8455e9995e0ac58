#include "products/cpu/fetch_ahead.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/rng.h"

namespace fathom {
namespace {

struct Kind {
  WeightType type;
  bool split;
  int64_t scale_bytes;
};

// Which of them a machine uses is a matter of time, so that the others would stay untested.
TEST(FetchAhead, ChangesNoBit) {
  constexpr int64_t kScaleBytes = CpuWeight::kIntegerScaleBytes, kGroups = kScaleTile / kGroup;
  Rng rng(1);
  // Codes, and as many bytes behind them as are asked for; read as they may be, but as no NaN.
  alignas(64) static std::byte codes[kScaleBytes + kScaleTile * kPanel * 2 + kFetchAhead];
  for (std::byte& code : codes) code = static_cast<std::byte>(0x20 | (rng.Next() & 0x1f));
  alignas(64) static std::byte values[kMaxDotTokens * kMaxRecordBytes];
  for (std::byte& value : values) value = static_cast<std::byte>(0x20 | (rng.Next() & 0x1f));
  float scales[kPanel];
  for (float& scale : scales) scale = rng.Uniform();
  const int32_t offsets[kMaxDotTokens] = {-128, 5, 7};

  for (const Kind& kind :
       {Kind{WeightType::kInt8, true, kScaleBytes}, Kind{WeightType::kInt4, true, kScaleBytes},
        Kind{WeightType::kE4M3, true, 0}, Kind{WeightType::kE4M3, false, 0},
        Kind{WeightType::kBF16, true, 0}, Kind{WeightType::kBF16, false, 0}}) {
    const DotKernels* kernels = FindDotKernels(kind.type, kind.split);
    if (kernels == nullptr) continue;  // this CPU lacks the instructions
    const DotTile tile = {.w = codes + kind.scale_bytes,
                          .groups = kGroups,
                          .scales = scales,
                          .scale_per_output = true};
    const DotTokens x = {.values = values, .scales = scales, .offsets = offsets};
    EXPECT_EQ(kernels->direct.most, kernels->direct_ahead.most);
    for (int64_t n = 1; n <= kernels->direct.most; ++n) {
      alignas(64) float plain[kMaxDotTokens * kPanel] = {}, ahead[kMaxDotTokens * kPanel] = {};
      kernels->direct.kernels[n - 1](tile, x, plain);
      kernels->direct_ahead.kernels[n - 1](tile, x, ahead);
      EXPECT_NE(plain[0], 0.0f);
      EXPECT_EQ(std::memcmp(plain, ahead, sizeof plain), 0) << n << " tokens";
    }
    if (kernels->decode == nullptr) continue;
    alignas(64) static std::byte plain[kMaxDecodedBytes], ahead[kMaxDecodedBytes];
    kernels->decode(tile, plain);
    kernels->decode_ahead(tile, ahead);
    EXPECT_EQ(std::memcmp(plain, ahead, sizeof plain), 0);
  }
}

}  // namespace
}  // namespace fathom
