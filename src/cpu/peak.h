// What the machine can do at best: the yardsticks that benchmarks hold the engine against.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cpu/thread_pool.h"

namespace fathom {

// Multiply-adds in registers, two operations each, per second over all of the pool's threads.
// Absent where the CPU lacks the instruction.
struct ArithmeticPeaks {
  double fp32 = 0;             // fused multiply-adds; the widest vectors that there are
  std::optional<double> bf16;  // AMX_BF16: tdpbf16ps; else AVX512_BF16: vdpbf16ps
  std::optional<double> int8;  // AMX_INT8: tdpbsud; else AVX512_VNNI: vpdpbusd
};

// The best of five runs of each.
ArithmeticPeaks MeasureArithmeticPeaks(ThreadPool& pool);

// Bytes per second that the pool's threads read together from `bytes` of memory (best of ten
// passes), which should be far larger than the caches. Allocates them for as long as it measures.
double MeasureReadBandwidth(ThreadPool& pool, int64_t bytes);

// "AMD EPYC 9554 64-Core Processor", from /proc/cpuinfo; "unknown" where that does not say.
std::string CpuModelName();

}  // namespace fathom
