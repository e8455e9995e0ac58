// MLPs on CUDA: by two products where the weights are BF16, else composed.
#include "ops/mlp/mlp_cuda.h"

#include "ops/cuda_ops.h"
#include "ops/mlp/compose_mlp.h"
#include "products/cuda/cuda_weight.h"

namespace fathom {
namespace {

struct Products {
  Bf16ProductParams gate_up, down;
};

const BF16* Values(const PackedWeight* weight) {
  return reinterpret_cast<const BF16*>(AsCuda(weight).values->data());
}

// `product`: BF16 [tokens, inter].
Products ProductsOf(const MlpArgs& a, BF16* product) {
  const auto* live = static_cast<const int32_t*>(a.live.data());
  return {.gate_up = {.x = static_cast<const BF16*>(a.x.data()),
                      .x_stride = a.x.stride(0),
                      .w = Values(a.gate_up),
                      .out = a.gate_up->out,
                      .in = a.gate_up->in,
                      .live = live,
                      .tokens = a.x.dim(0),
                      .y = product,
                      .y_stride = a.down->in,
                      .silu = true},
          .down = {.x = product,
                   .x_stride = a.down->in,
                   .w = Values(a.down),
                   .out = a.down->out,
                   .in = a.down->in,
                   .live = live,
                   .tokens = a.x.dim(0),
                   .y = a.out.data(),
                   .y_stride = a.out.stride(0)}};
}

}  // namespace

bool Bf16MlpFits(const MlpArgs& a) {
  if (a.gate_up->format != WeightFormat::kBF16 || a.down->format != WeightFormat::kBF16) {
    return false;
  }
  const Products products = ProductsOf(a, nullptr);
  return Bf16ProductFits(products.gate_up) && Bf16ProductFits(products.down);
}

void LaunchBf16Mlp(const MlpArgs& a, std::byte* workspace, Bf16ProductLaunch& launch,
                   cudaStream_t stream) {
  const Products products = ProductsOf(a, reinterpret_cast<BF16*>(workspace));
  launch(products.gate_up, stream);
  launch(products.down, stream);
}

size_t MlpCudaWorkspace(const Stream& stream, const MlpArgs& a) {
  if (!Bf16MlpFits(a)) return ComposedMlpWorkspace(stream, a, {LinearCuda, LinearCudaWorkspace});
  return static_cast<size_t>(a.x.dim(0) * a.down->in) * sizeof(BF16);
}

void MlpCuda(OpContext& context, const MlpArgs& a) {
  if (!Bf16MlpFits(a)) {
    return ComposeMlp(context, a, {LinearCuda, LinearCudaWorkspace}, {SiluMulCuda});
  }
  LaunchBf16Mlp(a, context.workspace.data(), LaunchBf16Product, Cuda(context).get());
  Cuda(context).CheckLaunch("mlp", a.x);
}

}  // namespace fathom
