#include "ops/cuda_ops.h"

#include "cuda/device.h"
#include "ops/cuda_properties.h"
#include "products/cuda/pack_weight.h"

namespace fathom {
namespace {

template <Fp8Activations kActivations>
Result<std::unique_ptr<PackedWeight>> Pack(Stream& stream, const PackArgs& a) {
  return PackForCuda(static_cast<CudaStream&>(stream).device(), a,
                     kActivations == Fp8Activations::kQuantized);
}

Ops Table(Fp8Activations activations) {
  const Ops portable = CudaProperties(/*hopper=*/false);
  return {
      .name = portable.name,
      .activation = portable.activation,
      .kv_cache = portable.kv_cache,
      .context_chunk = portable.context_chunk,
      .exchange_tokens = portable.exchange_tokens,
      .limits = portable.limits,
      .pack = activations == Fp8Activations::kExact ? Pack<Fp8Activations::kExact>
                                                    : Pack<Fp8Activations::kQuantized>,
      .embed = {EmbedCuda},
      .convert = {ConvertCuda},
      .rms_norm = {RmsNormCuda},
      .all_reduce_norm = {AllReduceNormCuda},
      .all_gather = {AllGatherCuda},
      .dispatch = {DispatchCuda},
      .combine = {CombineCuda},
      .linear = {LinearCuda, LinearCudaWorkspace},
      .head_linear = {HeadLinearCuda},
      .silu_mul = {SiluMulCuda},
      .mlp = {MlpCuda, MlpCudaWorkspace},
      .rotate_and_cache = {RotateAndCacheCuda},
      .attend_absorbed = {AttendAbsorbedCuda},
      .gather_context = {GatherContextCuda},
      .attend_expanded = {AttendExpandedCuda},
      .route = {RouteCuda, RouteCudaWorkspace},
      .moe_experts = {MoeExpertsCuda, MoeExpertsCudaWorkspace},
      .gather_tokens = {GatherTokensCuda},
      .prepare_inputs = {PrepareInputsCuda},
      .adjust_logits = {AdjustLogitsCuda},
      .log_probs = {LogProbsCuda},
      .sample = {SampleCuda},
      .verify_drafts = {VerifyDraftsCuda},
      .commit = {CommitCuda},
      .propose_ngram = {ProposeNgramCuda},
      .prepare_drafts = {PrepareDraftsCuda},
      .add_draft = {AddDraftCuda},
  };
}

}  // namespace

const Ops& CudaPortableOps(Fp8Activations activations) {
  static const Ops exact = Table(Fp8Activations::kExact);
  static const Ops quantized = Table(Fp8Activations::kQuantized);
  return activations == Fp8Activations::kExact ? exact : quantized;
}

const Ops& CudaOps(const CudaDevice& device, Fp8Activations activations) {
  return device.is_hopper() ? CudaHopperOps(activations) : CudaPortableOps(activations);
}

}  // namespace fathom
