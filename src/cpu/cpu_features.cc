#include "cpu/cpu_features.h"

#include <hwy/targets.h>

namespace fathom {
namespace {

CpuInstructions allowed = CpuInstructions::kAll;

}  // namespace

void LimitInstructions(CpuInstructions most) {
  allowed = most;
#if defined(__x86_64__)
  // Highway's targets are bits, better ones lower.
  constexpr int64_t kBeyondAvx2 = HWY_AVX2 - 1;
  switch (most) {
    case CpuInstructions::kPortable: return hwy::DisableTargets(kBeyondAvx2 | HWY_AVX2);
    case CpuInstructions::kAvx2: return hwy::DisableTargets(kBeyondAvx2);
    default: return hwy::DisableTargets(0);
  }
#endif
}

bool AmxAllowed() {
  return allowed == CpuInstructions::kAll;
}

bool HasBf16Dot() {
#if defined(__x86_64__)
  return allowed >= CpuInstructions::kDots && HasAvx512() && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512vbmi");
#else
  return false;
#endif
}

bool HasInt8Dot() {
#if defined(__x86_64__)
  return allowed >= CpuInstructions::kDots && HasAvx512() && __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

// Tests restrict Highway's targets; these follow.
bool HasAvx2() {
#if defined(__x86_64__)
  return (hwy::SupportedTargets() & HWY_AVX2) != 0;
#else
  return false;
#endif
}

bool HasAvx512() {
#if defined(__x86_64__)
  return (hwy::SupportedTargets() & HWY_AVX3) != 0;
#else
  return false;
#endif
}

}  // namespace fathom
