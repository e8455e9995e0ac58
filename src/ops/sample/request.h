// How a row of Sample wants its token drawn, read from its slot.
#pragma once

#include "ops/ops.h"
#include "ops/sample/uniform.h"

namespace fathom {

// What a row asks for.
struct SampleRequest {
  float temperature, top_p, min_p;
  int64_t top_k;
  double uniform;
};

inline SampleRequest RequestOf(const SampleArgs& a, int64_t row) {
  const int32_t slot = a.row_slot.As<int32_t>()[row];
  CHECK(slot >= 0 && slot < a.slots.temperature.dim(0), "sample: slot {}", slot);
  const int32_t* seed = a.slots.seed.Row<int32_t>(slot);
  return {
      .temperature = a.slots.temperature.As<float>()[slot],
      .top_p = a.slots.top_p.As<float>()[slot],
      .min_p = a.slots.min_p.As<float>()[slot],
      .top_k = a.slots.top_k.As<int32_t>()[slot],
      .uniform = SampleUniform(static_cast<uint32_t>(seed[0]), static_cast<uint32_t>(seed[1]),
                               a.position.As<int32_t>()[row]),
  };
}

}  // namespace fathom
