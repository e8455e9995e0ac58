#include "ops/cpu_ops.h"

#include "ops/reference_ops.h"

namespace fathom {

const Ops& CpuOps() {
  // Where there is nothing to tune, the reference's function serves.
  static const Ops table = {
      .name = "cpu",
      .activation = DType::kF32,
      .kv_cache = DType::kBF16,
      .prepare = PrepareCpu,
      .embed = {EmbedCpu},
      .rms_norm = {RmsNormCpu},
      .add = {AddCpu},
      .linear = {LinearCpu, LinearCpuWorkspace},
      .head_linear = {HeadLinearCpu},
      .silu_mul = {SiluMulCpu},
      .rope = {RopeCpu},
      .cache_write = {CacheWriteCpu},
      .attend_absorbed = {AttendAbsorbedCpu, AttendAbsorbedCpuWorkspace},
      .gather_context = {GatherContextCpu},
      .attend_expanded = {AttendExpandedCpu, AttendExpandedCpuWorkspace},
      .route = {RouteCpu, RouteCpuWorkspace},
      .moe_experts = {MoeExpertsCpu, MoeExpertsCpuWorkspace},
      .gather_rows = {GatherRowsReference},
      .prepare_inputs = {PrepareInputsReference},
      .adjust_logits = {AdjustLogitsCpu},
      .log_probs = {LogProbsCpu, LogProbsCpuWorkspace},
      .sample = {SampleCpu, SampleCpuWorkspace},
      .commit = {CommitReference},
  };
  return table;
}

}  // namespace fathom
