#include "ops/reference_math.h"
#include "ops/reference_ops.h"

namespace fathom {

void SiluMulReference(OpContext&, const SiluMulArgs& a) {
  const int64_t inter = a.out.dim(1);
  for (int64_t t = 0; t < *a.live.As<int32_t>(); ++t) {
    const float *gate = a.gate_up.As<float>(t), *up = gate + inter;
    for (int64_t i = 0; i < inter; ++i) a.out.As<float>(t)[i] = SiluMul(gate[i], up[i]);
  }
}

}  // namespace fathom
