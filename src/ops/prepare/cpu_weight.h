// Weights of the CPU table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/packed_weight.h"
#include "tensor/buffer.h"

namespace fathom {

// Outputs that a kernel computes side by side, one vector lane each: so every sum is taken in the
// order of the channels, for one row as for many.
inline constexpr int64_t kPanel = 32;

// Every matrix lies in panels of kPanel outputs, [panels, in, kPanel]; a part's last panel is
// padded with zeros. A run is what shares a scale along the channels: a scale tile of the weight,
// and the channels of an activation that are quantised together.
struct CpuWeight final : PackedWeight {
  struct Panel {
    int64_t out = 0;    // its first output
    int64_t width = 0;  // outputs without padding
  };
  std::vector<Panel> panels;  // of each matrix
  Buffer values;              // [count, panels, in, kPanel] in `format`; E4M3 without NaN codes
  // kFp8: F32 [count, panels, runs], or [count, panels, runs, kPanel] if scale_per_output (a panel
  // straddles tiles, or holds a NaN, which becomes its scale). They are those of the checkpoint
  // times 2^8, because kernels decode codes as binary16 numbers, which are 2^8 times too small.
  Buffer scales;
  bool scale_per_output = false;
  int64_t first_run = kScaleTile;  // channels; fewer than kScaleTile if cut inside a tile

  size_t element_bytes() const {
    switch (format) {
      case WeightFormat::kF32: return 4;
      case WeightFormat::kF16:
      case WeightFormat::kBF16: return 2;
      case WeightFormat::kFp8: return 1;
    }
    return 0;
  }
  int64_t panel_count() const { return static_cast<int64_t>(panels.size()); }
  const std::byte* panel(int64_t matrix, int64_t p) const {
    return values.data() + (matrix * panel_count() + p) * panel_bytes();
  }
  int64_t panel_bytes() const { return in * kPanel * static_cast<int64_t>(element_bytes()); }
  // Scales of run 0; those of the next run follow after scale_stride().
  const float* panel_scales(int64_t matrix, int64_t p) const {
    return reinterpret_cast<const float*>(scales.data()) +
           (matrix * panel_count() + p) * runs() * scale_stride();
  }
  int64_t scale_stride() const { return scale_per_output ? kPanel : 1; }

  int64_t runs() const { return 1 + (in - first_run + kScaleTile - 1) / kScaleTile; }
  int64_t run_begin(int64_t r) const { return r == 0 ? 0 : first_run + (r - 1) * kScaleTile; }
  int64_t run_end(int64_t r) const { return std::min(in, first_run + r * kScaleTile); }
};

inline const CpuWeight& AsCpu(const PackedWeight* weight) {
  return *static_cast<const CpuWeight*>(weight);
}

}  // namespace fathom
