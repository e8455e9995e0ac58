// silu(gate) * up (products/cpu/silu_mul_token.cc), split over tokens.
#include "ops/cpu_ops.h"
#include "products/cpu/silu_mul_token.h"

namespace fathom {

void SiluMulCpu(OpContext& context, const SiluMulArgs& a) {
  const int64_t inter = a.out.dim(1);
  Pool(context).ParallelFor(Live(a.live, a.out.dim(0)), Grain(2 * inter),
                            [&](int64_t begin, int64_t end, int) {
                              for (int64_t t = begin; t < end; ++t) {
                                const float* gate = a.gate_up.As<float>(t);
                                SiluMulToken(gate, gate + inter, inter, a.out.As<float>(t));
                              }
                            });
}

}  // namespace fathom
