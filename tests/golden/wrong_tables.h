// Ops that are wrong on purpose, to see that it is noticed.
#pragma once

#include <cmath>

#include "ops/ops.h"

namespace fathom {

// Attention of which a token's bits depend on how many tokens of its row are in the step.
inline void AttendByRowLength(OpContext& context, const AttendAbsorbedArgs& a) {
  const Ops right = CpuOps(Fp8Activations::kExact);
  AttendAbsorbedArgs attention = a;
  attention.values = {};
  right.attend_absorbed.run(context, attention);
  const int32_t live = *a.tokens.live.As<int32_t>(), *slots = a.tokens.slots.As<int32_t>();
  const int64_t width = a.out.dim(1) * a.out.dim(2);
  for (int32_t t = 0; t < live; ++t) {
    const bool alone =
        (t == 0 || slots[t - 1] != slots[t]) && (t + 1 == live || slots[t + 1] != slots[t]);
    float* out = a.out.As<float>() + t * width;
    for (int64_t i = 0; !alone && i < width; ++i) out[i] = std::nextafter(out[i], 0.0f);
  }
  if (a.values.weight != nullptr) right.head_linear.run(context, a.values);
}

}  // namespace fathom
