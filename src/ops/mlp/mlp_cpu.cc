// The CPU's MLP is the composition of its linear, silu_mul and linear.
#include "ops/cpu_ops.h"
#include "ops/mlp/compose_mlp.h"

namespace fathom {

size_t MlpCpuWorkspace(const Stream& stream, const MlpArgs& a) {
  return ComposedMlpWorkspace(stream, a, {LinearCpu, LinearCpuWorkspace});
}

void MlpCpu(OpContext& context, const MlpArgs& a) {
  ComposeMlp(context, a, {LinearCpu, LinearCpuWorkspace}, {SiluMulCpu});
}

}  // namespace fathom
