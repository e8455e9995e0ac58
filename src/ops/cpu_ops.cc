#include "ops/cpu_ops.h"

#include "ops/reference_ops.h"
#include "products/cpu/pack_weight.h"

namespace fathom {

namespace {

using PackFunction = decltype(Ops::pack);

Result<std::unique_ptr<PackedWeight>> Pack(Stream& stream, const PackArgs& a,
                                           const CpuPacking& wanted) {
  return PackForCpu(static_cast<CpuStream&>(stream).pool(), a, wanted);
}
Result<std::unique_ptr<PackedWeight>> PackExact(Stream& stream, const PackArgs& a) {
  return Pack(stream, a, {});
}
Result<std::unique_ptr<PackedWeight>> PackQuantized(Stream& stream, const PackArgs& a) {
  return Pack(stream, a, {.quantize_activations = true});
}
Result<std::unique_ptr<PackedWeight>> PackBF16(Stream& stream, const PackArgs& a) {
  return Pack(stream, a, {.round_activations = true});
}
template <WeightFormat kFormat>
Result<std::unique_ptr<PackedWeight>> PackIntegers(Stream& stream, const PackArgs& a) {
  return Pack(stream, a, {.round_activations = true, .quantize_to = kFormat});
}

Ops Table(PackFunction pack, DType kv_cache) {
  // Where there is nothing to tune, the reference's function serves.
  return {
      .name = "cpu",
      .activation = DType::kF32,
      .kv_cache = kv_cache,
      .pack = pack,
      .embed = {EmbedCpu},
      .convert = {ConvertCpu},
      .rms_norm = {RmsNormCpu},
      .all_reduce_norm = {AllReduceNormCpu},
      .all_gather = {AllGatherReference},
      .dispatch = {DispatchCpu},
      .combine = {CombineCpu, CombineReferenceWorkspace},
      .linear = {LinearCpu, LinearCpuWorkspace},
      .head_linear = {HeadLinearCpu, HeadLinearCpuWorkspace},
      .silu_mul = {SiluMulCpu},
      .mlp = {MlpCpu, MlpCpuWorkspace},
      .rotate_and_cache = {RotateAndCacheCpu},
      .attend_absorbed = {AttendAbsorbedCpu, AttendAbsorbedCpuWorkspace},
      .gather_context = {GatherContextCpu},
      .attend_expanded = {AttendExpandedCpu, AttendExpandedCpuWorkspace},
      .route = {RouteCpu, RouteCpuWorkspace},
      .moe_experts = {MoeExpertsCpu, MoeExpertsCpuWorkspace},
      .gather_tokens = {GatherTokensReference},
      .prepare_inputs = {PrepareInputsReference},
      .adjust_logits = {AdjustLogitsCpu},
      .log_probs = {LogProbsCpu, LogProbsCpuWorkspace},
      .sample = {SampleCpu, SampleCpuWorkspace},
      .verify_drafts = {VerifyDraftsReference},
      .commit = {CommitReference},
      .propose_ngram = {ProposeNgramReference},
      .prepare_drafts = {PrepareDraftsReference},
      .add_draft = {AddDraftReference},
  };
}

}  // namespace

const Ops& CpuOps(Fp8Activations activations) {
  static const Ops exact = Table(PackExact, DType::kF32);
  static const Ops quantized = Table(PackQuantized, DType::kF32);
  return activations == Fp8Activations::kExact ? exact : quantized;
}

const Ops& CpuBF16Ops() {
  static const Ops ops = Table(PackBF16, DType::kBF16);
  return ops;
}

const Ops& CpuIntegerOps(WeightFormat format) {
  // Rounding the cache and the absorbed form's activations to BF16 is little beside that.
  static const Ops int8 = Table(PackIntegers<WeightFormat::kInt8>, DType::kBF16);
  static const Ops int4 = Table(PackIntegers<WeightFormat::kInt4>, DType::kBF16);
  CHECK(format == WeightFormat::kInt8 || format == WeightFormat::kInt4, "not an integer format");
  return format == WeightFormat::kInt8 ? int8 : int4;
}

}  // namespace fathom
