// Weights of the CUDA table.
#pragma once

#include <algorithm>
#include <memory>

#include "products/packed_weight.h"
#include "quant/e4m3.h"
#include "tensor/device.h"

namespace fathom {

// Matrices [count, out, in] contiguous on the device, in the type the checkpoint stores. FP8 has
// scales F32 [count, parts, part_scale_groups, runs] beside it, for groups of kScaleTile outputs of
// a part, or for single outputs where sharding cut a tile at a part's first output.
struct CudaWeight final : PackedWeight {
  std::unique_ptr<DeviceMemory> values, scales;
  int64_t parts = 1, part_out = 0;
  int64_t part_scale_groups = 0;

  // Whether each part's scales are [ceil(part_out / 128), ceil(in / 128)], of whole tiles.
  bool whole_tiles() const {
    return format.scales.outputs.size == kScaleTile &&
           run_end(0) == std::min<int64_t>(in, kScaleTile);
  }
};

inline const CudaWeight& AsCuda(const PackedWeight* weight) {
  return *static_cast<const CudaWeight*>(weight);
}

}  // namespace fathom
