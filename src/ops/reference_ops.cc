#include "ops/reference_ops.h"

#include "products/reference/pack_weight.h"

namespace fathom {
namespace {

template <Fp8Activations kActivations>
Result<std::unique_ptr<PackedWeight>> Pack(Stream&, const PackArgs& a) {
  return PackForReference(a, kActivations == Fp8Activations::kQuantized);
}

Ops Table(Fp8Activations activations) {
  return {
      .name = "reference",
      .activation = DType::kF32,
      .kv_cache = DType::kF32,
      .pack = activations == Fp8Activations::kExact ? Pack<Fp8Activations::kExact>
                                                    : Pack<Fp8Activations::kQuantized>,
      .embed = {EmbedReference},
      .convert = {ConvertReference},
      .rms_norm = {RmsNormReference},
      .all_reduce_norm = {AllReduceNormReference},
      .all_gather = {AllGatherReference},
      .dispatch = {DispatchReference},
      .combine = {CombineReference, CombineReferenceWorkspace},
      .linear = {LinearReference, LinearReferenceWorkspace},
      .head_linear = {HeadLinearReference},
      .silu_mul = {SiluMulReference},
      .mlp = {MlpReference, MlpReferenceWorkspace},
      .rotate_and_cache = {RotateAndCacheReference},
      .attend_absorbed = {AttendAbsorbedReference, AttendAbsorbedReferenceWorkspace},
      .gather_context = {GatherContextReference},
      .attend_expanded = {AttendExpandedReference, AttendExpandedReferenceWorkspace},
      .route = {RouteReference, RouteReferenceWorkspace},
      .moe_experts = {MoeExpertsReference, MoeExpertsReferenceWorkspace},
      .gather_tokens = {GatherTokensReference},
      .prepare_inputs = {PrepareInputsReference},
      .adjust_logits = {AdjustLogitsReference},
      .log_probs = {LogProbsReference, LogProbsReferenceWorkspace},
      .sample = {SampleReference, SampleReferenceWorkspace},
      .verify_drafts = {VerifyDraftsReference},
      .commit = {CommitReference},
      .propose_ngram = {ProposeNgramReference},
      .prepare_drafts = {PrepareDraftsReference},
      .add_draft = {AddDraftReference},
  };
}

}  // namespace

const Ops& ReferenceOps(Fp8Activations activations) {
  static const Ops exact = Table(Fp8Activations::kExact);
  static const Ops quantized = Table(Fp8Activations::kQuantized);
  return activations == Fp8Activations::kExact ? exact : quantized;
}

}  // namespace fathom
