// Gated activation on CUDA.
//   formula:       out = silu(gate) * up, gate_up = [gate, up]
//   data mapping:  blocks of 256 channels of one token
//   bytes, FLOPs:  6 bytes and some 10 FLOP a number
//   accumulator:   none
//   expected time: one launch (2 us) for up to 128 tokens of 18432; not measured
#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"
#include "products/cuda/silu_mul.cuh"

namespace fathom {
namespace kernels {

__global__ void SiluMulTokens(Slices<const BF16> gate_up, int64_t inter, const int32_t* live,
                              Slices<BF16> out) {
  const int64_t t = blockIdx.x, i = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (t >= *live || i >= inter) return;
  Store(out[t] + i, SiluMul(Load(gate_up[t] + i), Load(gate_up[t] + inter + i)));
}

}  // namespace kernels

void SiluMulCuda(OpContext& context, const SiluMulArgs& a) {
  if (a.out.elements() == 0) return;
  using namespace kernels;
  const dim3 grid(static_cast<unsigned>(a.out.dim(0)), Blocks(a.out.dim(1), 256));
  SiluMulTokens<<<grid, 256, 0, Cuda(context).get()>>>(
      SlicesOf<const BF16>(a.gate_up), a.out.dim(1), Data<int32_t>(a.live), SlicesOf<BF16>(a.out));
  Cuda(context).CheckLaunch("silu_mul", a.out);
}

}  // namespace fathom
