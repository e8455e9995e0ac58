#include "cuda/device.h"
#include "ops/cuda_plain_ops.h"
#include "products/cuda/pack_weight.h"

namespace fathom {
namespace {

template <Fp8Activations kActivations>
Result<std::unique_ptr<PackedWeight>> Pack(Stream& stream, const PrepareArgs& a) {
  return PackForCuda(static_cast<CudaStream&>(stream).device(), a,
                     kActivations == Fp8Activations::kQuantized);
}

Ops PortableTable(Fp8Activations activations) {
  return {
      .name = "cuda-portable",
      .activation = DType::kBF16,
      .kv_cache = DType::kBF16,
      .context_chunk = 4096,
      .limits = {.norm_width = 8192, .experts = 1024, .topk = 32},
      .prepare = activations == Fp8Activations::kExact ? Pack<Fp8Activations::kExact>
                                                       : Pack<Fp8Activations::kQuantized>,
      .embed = {EmbedCuda},
      .rms_norm = {RmsNormCuda},
      .linear = {LinearCuda, LinearCudaWorkspace},
      .head_linear = {HeadLinearCuda},
      .silu_mul = {SiluMulCuda},
      .mlp = {MlpCuda, MlpCudaWorkspace},
      .rope = {RopeCuda},
      .cache_write = {CacheWriteCuda},
      .rotate_and_cache = {RotateAndCacheCuda},
      .attend_absorbed = {AttendAbsorbedCuda},
      .gather_context = {GatherContextCuda},
      .attend_expanded = {AttendExpandedCuda},
      .route = {RouteCuda, RouteCudaWorkspace},
      .moe_experts = {MoeExpertsCuda, MoeExpertsCudaWorkspace},
      .gather_rows = {GatherRowsCuda},
      .prepare_inputs = {PrepareInputsCuda},
      .adjust_logits = {AdjustLogitsCuda},
      .log_probs = {LogProbsCuda},
      .sample = {SampleCuda},
      .commit = {CommitCuda},
  };
}

Ops Table(Fp8Activations activations) {
  Ops ops = PortableTable(activations);
  ops.name = "cuda";
  ops.quantized_copies = true;
  ops.linear = {LinearHopper, LinearHopperWorkspace};
  ops.head_linear = {HeadLinearHopper};
  ops.mlp = {MlpHopper, MlpHopperWorkspace};
  ops.attend_absorbed = {AttendAbsorbedHopper, AttendAbsorbedHopperWorkspace};
  ops.attend_expanded = {AttendExpandedHopper};
  ops.moe_experts = {MoeExpertsHopper, MoeExpertsHopperWorkspace};
  return ops;
}

}  // namespace

bool IsHopper(const Stream& stream) {
  return static_cast<const CudaStream&>(stream).device().is_hopper();
}

bool ReadsQuantized(const Stream& stream, const QuantizedCopy& copy) {
  // Wider rows (o of 128 heads) are quantised by their product.
  constexpr int64_t kWidest = 8192;
  const int64_t width = copy.absent() ? 0 : copy.codes.dim(1);
  return width > 0 && width <= kWidest && width % 16 == 0 && IsHopper(stream);
}

QuantizedOut QuantizedOutOf(const Stream& stream, const QuantizedCopy& copy) {
  if (!ReadsQuantized(stream, copy)) return {};
  return {static_cast<uint8_t*>(copy.codes.data()), static_cast<float*>(copy.scales.data()),
          copy.scales.stride(0), copy.scale_ue8m0};
}

const Ops& CudaPortableOps(Fp8Activations activations) {
  static const Ops exact = PortableTable(Fp8Activations::kExact);
  static const Ops quantized = PortableTable(Fp8Activations::kQuantized);
  return activations == Fp8Activations::kExact ? exact : quantized;
}

const Ops& CudaOps(Fp8Activations activations) {
  static const Ops exact = Table(Fp8Activations::kExact);
  static const Ops quantized = Table(Fp8Activations::kQuantized);
  return activations == Fp8Activations::kExact ? exact : quantized;
}

}  // namespace fathom
