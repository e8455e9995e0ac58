#include "ops/cpu_ops.h"

#include "ops/reference_ops.h"

namespace fathom {

const Ops& CpuOps() {
  static const Ops table = {
      .name = "cpu",
      .activation = DType::kF32,
      .kv_cache = DType::kBF16,
      .prepare = PrepareCpu,
      .linear = {LinearCpu, LinearCpuWorkspace},
      .head_linear = {HeadLinearCpu},
  };
  return table;
}

}  // namespace fathom
