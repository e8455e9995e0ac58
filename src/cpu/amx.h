// AMX: registers of 16 x 64 bytes, and products of 16 x 64 by 64 x 16 bytes summed in 32 bits, in
// one instruction (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter
// on AMX).
#pragma once

#include <cstdint>

namespace fathom {

inline constexpr int64_t kAmxRows = 16, kAmxRowBytes = 64;  // of a register

// AMX_INT8 with HasInt8Dot(), AMX_BF16 with HasBf16Dot(), and the operating system's permission to
// use these registers, which this asks for.
bool HasInt8Amx();
bool HasBf16Amx();

// What a thread does before it uses them, and after it, so that nobody need save them: 0 to 5 have
// so many rows, 1 to kAmxRows, and 6 and 7, for the weights, kAmxRows. REQUIRES: one of these.
void BeginAmx(int64_t rows);
void EndAmx();

}  // namespace fathom

// Of a function that uses them. GCC 12's _tile_loadd does not say that it reads memory: nothing
// that it reads may be written in that function.
#define FATHOM_AMX \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-int8,amx-bf16")))
