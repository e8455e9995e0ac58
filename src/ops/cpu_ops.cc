#include "ops/cpu_ops.h"

#include "ops/reference_ops.h"

namespace fathom {

namespace {

Ops Table(Fp8Activations activations) {
  // Where there is nothing to tune, the reference's function serves.
  return {
      .name = "cpu",
      .activation = DType::kF32,
      .kv_cache = DType::kF32,
      .prepare = activations == Fp8Activations::kExact ? PrepareCpuExact : PrepareCpuQuantized,
      .embed = {EmbedCpu},
      .rms_norm = {RmsNormCpu},
      .add = {AddCpu},
      .linear = {LinearCpu, LinearCpuWorkspace},
      .head_linear = {HeadLinearCpu},
      .silu_mul = {SiluMulCpu},
      .mlp = {MlpCpu, MlpCpuWorkspace},
      .rope = {RopeCpu},
      .cache_write = {CacheWriteCpu},
      .rotate_and_cache = {RotateAndCacheCpu},
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
}

}  // namespace

const Ops& CpuOps(Fp8Activations activations) {
  static const Ops exact = Table(Fp8Activations::kExact);
  static const Ops quantized = Table(Fp8Activations::kQuantized);
  return activations == Fp8Activations::kExact ? exact : quantized;
}

}  // namespace fathom
