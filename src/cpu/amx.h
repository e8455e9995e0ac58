// AMX: registers of 16 x 64 bytes, and products of 16 x 64 by 64 x 16 bytes summed in 32 bits, in
// one instruction (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter
// on AMX).
#pragma once

#include <cstdint>

namespace fathom {

inline constexpr int64_t kAmxRows = 16, kAmxRowBytes = 64;  // of a register

// AMX_INT8, with HasInt8Dot(), and the operating system's permission to use these registers, which
// this asks for.
bool HasInt8Amx();

// What a thread does before it uses them, all eight of that size, and after it, so that nobody need
// save them. REQUIRES: HasInt8Amx().
void BeginAmx();
void EndAmx();

}  // namespace fathom

// Of a function that uses them. GCC 12's _tile_loadd does not say that it reads memory: nothing
// that it reads may be written in that function.
#define FATHOM_AMX __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-int8")))
