// Weights of the CUDA table.
#pragma once

#include <algorithm>
#include <memory>

#include "products/packed_weight.h"
#include "quant/e4m3.h"
#include "tensor/device.h"

namespace fathom {

// Matrices [count, out, in] row-major on the device, in the type the checkpoint stores. FP8 has
// scales F32 [count, parts, part_scale_rows, runs] beside it: row n of a part takes scale row
// n / tile_rows. tile_rows is kScaleTile, or 1 where sharding cut a tile at a part's first row.
struct CudaWeight final : PackedWeight {
  std::unique_ptr<DeviceMemory> values, scales;
  int64_t first_run = 0;  // kFp8: channels of the first run; kScaleTile unless cut inside a tile
  int64_t parts = 1, part_out = 0;
  int64_t tile_rows = kScaleTile, part_scale_rows = 0;

  int64_t runs() const { return 1 + (in - first_run + kScaleTile - 1) / kScaleTile; }
  // Whether each part's scales are [ceil(part_out / 128), ceil(in / 128)], of whole tiles.
  bool whole_tiles() const {
    return tile_rows == kScaleTile && first_run == std::min<int64_t>(in, kScaleTile);
  }
};

inline const CudaWeight& AsCuda(const PackedWeight* weight) {
  return *static_cast<const CudaWeight*>(weight);
}

}  // namespace fathom
