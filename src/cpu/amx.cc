#include "cpu/amx.h"

#include "cpu/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace fathom {
namespace {

constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;  // of leaf 7, in edx

bool MayUse(unsigned features) {
  unsigned a, b, c, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (~d & (kTile | features)) != 0) return false;
  // Linux, Documentation/arch/x86/xstate.rst: for all threads of the process.
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// "Tile configuration": palette 1, and bytes and number of the rows of eight registers. Static, as
// GCC 12 takes _tile_loadconfig for a load of eight bytes, and leaves out other stores.
struct alignas(64) Configuration {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {0, 0, 0, 0, 0, 0, kAmxRows, kAmxRows};
};
static_assert(sizeof(Configuration) == 64 && kAmxRowBytes == 64);

struct Configurations {
  Configuration of[kAmxRows + 1] = {};
  constexpr Configurations() {
    for (int rows = 1; rows <= kAmxRows; ++rows) {
      for (int i = 0; i < 6; ++i) of[rows].rows[i] = static_cast<uint8_t>(rows);
    }
  }
};
constexpr Configurations kConfigurations;

}  // namespace

bool HasInt8Amx() {
  static const bool may = MayUse(kInt8);
  return may && AmxAllowed() && HasInt8Dot();
}
bool HasBf16Amx() {
  static const bool may = MayUse(kBf16);
  return may && AmxAllowed() && HasBf16Dot();
}

FATHOM_AMX void BeginAmx(int64_t rows) {
  _tile_loadconfig(&kConfigurations.of[rows]);
}
FATHOM_AMX void EndAmx() {
  _tile_release();
}

}  // namespace fathom

#else

namespace fathom {

bool HasInt8Amx() {
  return false;
}
bool HasBf16Amx() {
  return false;
}
void BeginAmx(int64_t) {}
void EndAmx() {}

}  // namespace fathom

#endif
