#include "ops/reference_ops.h"

namespace fathom {
namespace {

Ops Table(ReferenceMode mode) {
  return {
      .name = "reference",
      .activation = DType::kF32,
      .kv_cache = DType::kF32,
      .prepare = mode == ReferenceMode::kFp32 ? PrepareReferenceFp32 : PrepareReferenceFp8,
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

const Ops& ReferenceOps(ReferenceMode mode) {
  static const Ops fp32 = Table(ReferenceMode::kFp32);
  static const Ops emulate_fp8 = Table(ReferenceMode::kEmulateFp8);
  return mode == ReferenceMode::kFp32 ? fp32 : emulate_fp8;
}

}  // namespace fathom
