// Highway with the targets that fathom builds for. Files with hot loops include it as Highway's
// foreach_target.h asks: define HWY_TARGET_INCLUDE first.
#pragma once

// AVX-512, AVX2 and the plain baseline: what lies between is older than the machines that matter.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
