// Experts by Hopper's kernels, FP8 and BF16, where the weights fit, else by the portable ones: by
// model; by tokens only between kernels of equal bits.
#include "ops/hopper_ops.h"
#include "ops/moe_experts/bf16_experts_cuda.h"
#include "ops/moe_experts/grouped_gemm_cuda.h"
#include "products/hopper/fp8_weights.h"

namespace fathom {
namespace {

bool Fp8Fits(const MoeExpertsArgs& a) {
  return Fp8WeightsFit(AsCuda(a.gate_up)) && Fp8WeightsFit(AsCuda(a.down)) &&
         AsCuda(a.gate_up).parts == 2 && a.down->count <= kMostExperts;
}

Fp8ExpertsParams ParamsOf(const MoeExpertsArgs& a) {
  return {.x = static_cast<const __nv_bfloat16*>(a.x.data()),
          .x_stride = a.x.stride(0),
          .ids = static_cast<const int32_t*>(a.ids.data()),
          .weights = static_cast<const float*>(a.weights.data()),
          .live = static_cast<const int32_t*>(a.live.data()),
          .tokens = a.x.dim(0),
          .topk = static_cast<int32_t>(a.ids.dim(1)),
          .shared = static_cast<int32_t>(a.shared),
          .gate_up = Fp8WeightsOf(AsCuda(a.gate_up)),
          .down = Fp8WeightsOf(AsCuda(a.down)),
          .scale_ue8m0 = a.gate_up->scale_ue8m0,
          .out = static_cast<__nv_bfloat16*>(a.out.data()),
          .norm = a.norm};
}

}  // namespace

size_t MoeExpertsHopperWorkspace(const Stream& stream, const MoeExpertsArgs& a) {
  return Fp8Fits(a) ? Fp8ExpertsWorkspace(ParamsOf(a)) : MoeExpertsCudaWorkspace(stream, a);
}

void MoeExpertsHopper(OpContext& context, const MoeExpertsArgs& a) {
  if (a.x.dim(0) == 0) return;
  if (Fp8Fits(a)) {
    Fp8ExpertsParams params = ParamsOf(a);
    params.workspace = context.workspace;
    LaunchFp8Experts(params, Cuda(context).get());
  } else if (Bf16ExpertsFit(a)) {
    LaunchBf16ExpertsOnHopper(a, context.workspace, Cuda(context).get());
  } else {
    return MoeExpertsCuda(context, a);
  }
  Cuda(context).CheckLaunch("moe_experts", a.x);
}

}  // namespace fathom
