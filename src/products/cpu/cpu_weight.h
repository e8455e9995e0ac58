// Weights of the CPU table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "products/packed_weight.h"
#include "tensor/buffer.h"

namespace fathom {

struct DotKernels;  // panel_dot.h

// Outputs that a kernel computes side by side, one vector lane each: so every sum is taken in one
// order of channels, for one token as for many.
inline constexpr int64_t kPanel = 32;

// How the numbers of a panel lie, outermost first:
//   kF32, kF16   [in][kPanel]
//   kBF16, kFp8  the same; or if `dots`, for instructions that sum several channels at once,
//                kBF16 [in / 2][kPanel][2], and kFp8 [in / 4][kPanel / 4][2][4][2]: of four outputs
//                the first pair of channels, then the second
//   kInt8        per run: scales, then codes [channels / 4][kPanel][4]
//   kInt4        per run: outer scales, then scales of 4 bits [16][kSubRuns], then codes
//                [channels / 4][16][4]: of each byte outputs below 16 have the low half, the rest
//                the high
// where the scales of a run are fp32 [kPanel], beside their codes so that memory is read in order.
// Where channels lie in groups, a run is padded with zeros to a multiple of kGroup (kInt4:
// kSubRun).
inline constexpr int64_t kGroup = 4;
// Channels of kInt4 that share a scale of 4 bits, the multiplier of the run's.
inline constexpr int64_t kSubRun = WeightFormat::kInt4.scales.channels.size;
inline constexpr int64_t kSubRuns = kScaleTile / kSubRun;
static_assert(WeightFormat::kInt8.scales.channels.size == kScaleTile &&
              WeightFormat::kInt4.outer_scales.channels.size == kScaleTile);

// What kernels read activations as.
enum class ActivationForm : uint8_t {
  kPlain,  // fp32 where they lie
  kSplit,  // the sum of two BF16 numbers: 16 bits of mantissa
  kBF16,   // rounded to BF16
  kE4M3,   // quantised to E4M3 per run
  kInt8,   // quantised to 8-bit integers per run
};

// Every matrix lies in panels of kPanel outputs; a part's last panel is padded with zeros. A run is
// what shares a scale along the channels: a scale tile of the weight, and the channels of an
// activation that are quantised together.
struct CpuWeight final : PackedWeight {
  struct Panel {
    int64_t out = 0;    // its first output
    int64_t width = 0;  // outputs without padding
  };
  std::vector<Panel> panels;  // of each matrix
  // Of instructions that sum several channels at once; null: multiplied number by number.
  const DotKernels* dots = nullptr;
  ActivationForm activations = ActivationForm::kPlain;
  Buffer values;  // [count, panels, panel_bytes()]; E4M3 without NaN codes
  // kFp8: F32 [count, panels, runs], or [count, panels, runs, kPanel] if scale_per_output (a panel
  // straddles tiles, or holds a NaN, which becomes its scale).
  // FP8 scales are those of the checkpoint times 2^8, because kernels decode codes as binary16
  // numbers, which are 2^8 times too small; divided by 2^8 if `dots` (panel_dot_bf16.cc).
  Buffer scales;
  bool scale_per_output = false;

  bool integer() const {
    return format.values == WeightType::kInt8 || format.values == WeightType::kInt4;
  }
  bool scaled() const { return format.scales.type != ScaleType::kNone; }

  int64_t panel_count() const { return static_cast<int64_t>(panels.size()); }
  // From the first output of panel a to that of panel b.
  int64_t OutsBetween(int64_t a, int64_t b) const {
    return panels[static_cast<size_t>(b)].out - panels[static_cast<size_t>(a)].out;
  }
  const std::byte* panel(int64_t matrix, int64_t p) const {
    return values.data() + (matrix * panel_count() + p) * panel_bytes();
  }
  int64_t panel_bytes() const { return RunOffset(runs() - 1) + RunBytes(runs() - 1); }
  // Bytes from a panel's begin to those of run r.
  int64_t RunOffset(int64_t r) const {
    return r == 0 ? 0 : RunBytes(0) + (r - 1) * BytesOf(kScaleTile);
  }
  int64_t RunBytes(int64_t r) const { return BytesOf(run_end(r) - run_begin(r)); }
  // Bytes of a run of so many channels.
  int64_t BytesOf(int64_t channels) const {
    const int64_t scale_bytes = integer() ? kIntegerScaleBytes : 0;
    if (format.values == WeightType::kInt4) {
      return scale_bytes + kPanel / 2 * (kSubRuns + RoundUp(channels, kSubRun));
    }
    const int64_t padded = dots != nullptr || integer() ? RoundUp(channels, kGroup) : channels;
    return scale_bytes + kPanel * padded * BitsOf(format.values) / 8;
  }
  static constexpr int64_t kIntegerScaleBytes = kPanel * sizeof(float);
  // Codes of a run, in the layouts above.
  const std::byte* Codes(int64_t matrix, int64_t p, int64_t run) const {
    return panel(matrix, p) + RunOffset(run) + (integer() ? kIntegerScaleBytes : 0);
  }
  // Of a run: one scale, or [kPanel] if scale_per_output. REQUIRES: scaled().
  const float* Scales(int64_t matrix, int64_t p, int64_t run) const {
    if (integer()) return reinterpret_cast<const float*>(panel(matrix, p) + RunOffset(run));
    return reinterpret_cast<const float*>(scales.data()) +
           ((matrix * panel_count() + p) * runs() + run) * scale_stride();
  }
  int64_t scale_stride() const { return scale_per_output ? kPanel : 1; }

  static int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
};

inline const CpuWeight& AsCpu(const PackedWeight* weight) {
  return *static_cast<const CpuWeight*>(weight);
}

}  // namespace fathom
