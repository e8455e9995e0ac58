// Which instructions kernels may use: dot products, which Highway 1.0.3 does not reach on every CPU
// that has them, and a limit.
#pragma once

#include <cstdint>

namespace fathom {

// What kernels may use, if this CPU has it.
enum class CpuInstructions : uint8_t {
  kPortable,  // what the compiler takes for granted
  kAvx2,
  kAvx512,  // without dot products
  kDots,    // without AMX
  kAll,
};
// For comparisons. Before weights are packed: their layout follows.
void LimitInstructions(CpuInstructions most);

// Whether AMX may be used where it is: cpu/amx.h.
bool AmxAllowed();

// AVX512_BF16 with the byte permutations of AVX512_VBMI: products of BF16 pairs summed in fp32.
bool HasBf16Dot();
// AVX512_VNNI: products of four bytes summed in 32 bits.
bool HasInt8Dot();
// AVX2: products of words summed in pairs.
bool HasAvx2();
bool HasAvx512();

}  // namespace fathom
