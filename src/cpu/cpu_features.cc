#include "cpu/cpu_features.h"

#include <hwy/targets.h>

namespace fathom {
namespace {

// Tests restrict Highway's targets; these follow.
bool Avx512() {
#if defined(__x86_64__)
  return (hwy::SupportedTargets() & HWY_AVX3) != 0;
#else
  return false;
#endif
}

}  // namespace

bool HasBf16Dot() {
#if defined(__x86_64__)
  return Avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
#else
  return false;
#endif
}

bool HasInt8Dot() {
#if defined(__x86_64__)
  return Avx512() && __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

bool HasAvx2() {
#if defined(__x86_64__)
  return (hwy::SupportedTargets() & HWY_AVX2) != 0;
#else
  return false;
#endif
}

}  // namespace fathom
