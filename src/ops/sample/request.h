// How a logit vector of Sample wants its token drawn, read from its slot.
#pragma once

#include "ops/ops.h"
#include "ops/sample/uniform.h"

namespace fathom {

// What a logit vector asks for.
struct SampleRequest {
  float temperature, top_p, min_p;
  int64_t top_k;
  double uniform;
};

inline SampleRequest RequestOf(const SampleArgs& a, int64_t vector) {
  const int32_t token = a.index.As<int32_t>()[vector];
  CHECK(token >= 0 && token < a.positions.dim(0), "sample: token {}", token);
  const int32_t slot = a.token_slot.As<int32_t>()[token];
  CHECK(slot >= 0 && slot < a.slots.temperature.dim(0), "sample: slot {}", slot);
  const int32_t* seed = a.slots.seed.As<int32_t>(slot);
  return {
      .temperature = a.slots.temperature.As<float>()[slot],
      .top_p = a.slots.top_p.As<float>()[slot],
      .min_p = a.slots.min_p.As<float>()[slot],
      .top_k = a.slots.top_k.As<int32_t>()[slot],
      .uniform = SampleUniform(static_cast<uint32_t>(seed[0]), static_cast<uint32_t>(seed[1]),
                               a.positions.As<int32_t>()[token] + 1),
  };
}

}  // namespace fathom
