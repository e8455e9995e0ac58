#include "products/cpu/fetch_ahead.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/clock.h"
#include "tensor/buffer.h"

namespace fathom {
namespace {

constexpr int64_t kLine = 64, kBytes = int64_t{4} << 20;
constexpr int kTrials = 5;  // of which the best counts
// Asking costs little where it does not help: it is left out where it clearly harms.
constexpr double kTolerated = 1.05;  // of the time

void LeaveCaches([[maybe_unused]] const std::byte* p, [[maybe_unused]] int64_t n) {
#if defined(__x86_64__)
  for (int64_t i = 0; i < n; i += kLine) __builtin_ia32_clflush(p + i);
  __builtin_ia32_mfence();
#endif
}

// Seconds to multiply one token with the runs in `memory`.
double TimeOneToken(DotKernel kernel, const RunLayout& run, const Buffer& memory) {
  alignas(64) static constexpr std::byte kToken[kMaxRecordBytes] = {};
  static constexpr float kScales[kPanel] = {};
  static constexpr int32_t kOffset = 0, kSubRunOffsets[kSubRuns] = {};
  alignas(64) float acc[kPanel] = {};
  LeaveCaches(memory.data(), kBytes);
  const double begin = SecondsNow();
  for (int64_t at = 0; at + run.bytes + kFetchAhead <= kBytes; at += run.bytes) {
    const std::byte* here = memory.data() + at;
    const auto* scales = run.scale_bytes > 0 ? reinterpret_cast<const float*>(here) : kScales;
    kernel({.w = here + run.scale_bytes,
            .groups = kScaleTile / kGroup,
            .scales = scales,
            .scale_per_output = true},
           {.values = kToken,
            .scales = kScales,
            .offsets = &kOffset,
            .sub_run_offsets = kSubRunOffsets},
           acc);
  }
  return SecondsNow() - begin;
}

}  // namespace

DotKernels WithFetchAhead(const DotKernels& kernels, const RunLayout& run) {
  Buffer memory(kBytes);
  constexpr int kNormal = 0x39;  // as FP8: subnormal codes are slower
  std::memset(memory.data(), kNormal, memory.size());
  double without = HUGE_VAL, with = HUGE_VAL;
  for (int trial = 0; trial < kTrials; ++trial) {
    without = std::min(without, TimeOneToken(kernels.direct.kernels[0], run, memory));
    with = std::min(with, TimeOneToken(kernels.direct_ahead.kernels[0], run, memory));
  }
  DotKernels measured = kernels;
  measured.fetches_ahead = with < kTolerated * without;
  return measured;
}

}  // namespace fathom
