#include "ops/reference_ops.h"

namespace fathom {
namespace {

Ops Table(Fp8Activations mode) {
  return {
      .name = "reference",
      .activation = DType::kF32,
      .kv_cache = DType::kF32,
      .prepare = mode == Fp8Activations::kExact ? PrepareReferenceFp32 : PrepareReferenceFp8,
      .embed = {EmbedReference},
      .rms_norm = {RmsNormReference},
      .add = {AddReference},
      .linear = {LinearReference, LinearReferenceWorkspace},
      .head_linear = {HeadLinearReference},
      .silu_mul = {SiluMulReference},
      .rope = {RopeReference},
      .cache_write = {CacheWriteReference},
      .attend_absorbed = {AttendAbsorbedReference, AttendAbsorbedReferenceWorkspace},
      .gather_context = {GatherContextReference},
      .attend_expanded = {AttendExpandedReference, AttendExpandedReferenceWorkspace},
      .route = {RouteReference, RouteReferenceWorkspace},
      .moe_experts = {MoeExpertsReference, MoeExpertsReferenceWorkspace},
      .gather_rows = {GatherRowsReference},
      .prepare_inputs = {PrepareInputsReference},
      .adjust_logits = {AdjustLogitsReference},
      .log_probs = {LogProbsReference, LogProbsReferenceWorkspace},
      .sample = {SampleReference, SampleReferenceWorkspace},
      .commit = {CommitReference},
  };
}

}  // namespace

const Ops& ReferenceOps(Fp8Activations mode) {
  static const Ops fp32 = Table(Fp8Activations::kExact);
  static const Ops emulate_fp8 = Table(Fp8Activations::kQuantized);
  return mode == Fp8Activations::kExact ? fp32 : emulate_fp8;
}

}  // namespace fathom
