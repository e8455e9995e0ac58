#include "products/cpu/fetch_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/rng.h"
#include "cpu/cpu_features.h"

namespace fathom {
namespace {

struct Kind {
  WeightType type;
  bool split;
};
constexpr Kind kKinds[] = {{WeightType::kInt8, true}, {WeightType::kInt4, true},
                           {WeightType::kE4M3, true}, {WeightType::kE4M3, false},
                           {WeightType::kBF16, true}, {WeightType::kBF16, false}};

// Small positive numbers in every format.
void Fill(Rng& rng, std::span<std::byte> bytes) {
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(0x20 | (rng.Next() & 0x1f));
}

void ExpectSameBits(const DotKernels& kernels) {
  Rng rng(1);
  alignas(64) static std::byte codes[kScaleTile * kPanel * 2 + kFetchAhead];
  alignas(64) static std::byte values[kMaxDotTokens * kMaxRecordBytes];
  Fill(rng, codes);
  Fill(rng, values);
  float scales[kPanel];
  for (float& scale : scales) scale = rng.Uniform() + 0.1f;
  const int32_t offsets[kMaxDotTokens] = {-128, 5, 7};
  const int32_t sub_run_offsets[kMaxDotTokens * kSubRuns] = {-8, 16, -24, 32, 40};
  const DotTile tile = {
      .w = codes, .groups = kScaleTile / kGroup, .scales = scales, .scale_per_output = true};
  const DotTokens x = {
      .values = values, .scales = scales, .offsets = offsets, .sub_run_offsets = sub_run_offsets};
  EXPECT_EQ(kernels.direct.most, kernels.direct_ahead.most);
  for (int64_t n = 1; n <= kernels.direct.most; ++n) {
    alignas(64) float plain[kMaxDotTokens * kPanel] = {}, ahead[kMaxDotTokens * kPanel] = {};
    kernels.direct.kernels[n - 1](tile, x, plain);
    kernels.direct_ahead.kernels[n - 1](tile, x, ahead);
    EXPECT_EQ(std::count(plain, plain + n * kPanel, 0.0f), 0);
    EXPECT_EQ(std::memcmp(plain, ahead, sizeof plain), 0) << n << " tokens";
  }
  if (kernels.decode == nullptr) return;
  alignas(64) static std::byte plain[kMaxDecodedBytes], ahead[kMaxDecodedBytes];
  kernels.decode(tile, plain);
  kernels.decode_ahead(tile, ahead);
  EXPECT_EQ(std::memcmp(plain, ahead, sizeof plain), 0);
}

// Which of them a machine uses is a matter of time: others would meet no test.
TEST(FetchAhead, ChangesNoBit) {
  for (const CpuInstructions most :
       {CpuInstructions::kAvx2, CpuInstructions::kDots, CpuInstructions::kAll}) {
    LimitInstructions(most);
    for (const Kind& kind : kKinds) {
      // Null: this CPU lacks the instructions.
      const DotKernels* kernels = FindDotKernels(kind.type, kind.split);
      if (kernels != nullptr) ExpectSameBits(*kernels);
    }
  }
}

}  // namespace
}  // namespace fathom
