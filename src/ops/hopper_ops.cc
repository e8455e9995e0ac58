#include "ops/hopper_ops.h"

#include "ops/cuda_properties.h"

namespace fathom {
namespace {

Ops Table(Fp8Activations activations) {
  Ops ops = CudaPortableOps(activations);
  const Ops hopper = CudaProperties(/*hopper=*/true);
  ops.name = hopper.name;
  ops.quantized_copies = hopper.quantized_copies;
  ops.reads_copy = LinearHopperReadsCopy;
  ops.linear = {LinearHopper, LinearHopperWorkspace};
  ops.head_linear = {HeadLinearHopper};
  ops.mlp = {MlpHopper, MlpHopperWorkspace};
  ops.attend_absorbed = {AttendAbsorbedHopper, AttendAbsorbedHopperWorkspace};
  ops.attend_expanded = {AttendExpandedHopper};
  ops.moe_experts = {MoeExpertsHopper, MoeExpertsHopperWorkspace};
  return ops;
}

}  // namespace

const Ops& CudaHopperOps(Fp8Activations activations) {
  static const Ops exact = Table(Fp8Activations::kExact);
  static const Ops quantized = Table(Fp8Activations::kQuantized);
  return activations == Fp8Activations::kExact ? exact : quantized;
}

}  // namespace fathom
