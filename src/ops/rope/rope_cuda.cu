// Rotary positions on CUDA.
//   formula:       (a, b) -> (a cos - b sin, a sin + b cos) for interleaved pairs
//   data mapping:  a block per token; threads take its pairs, head by head
//   bytes, FLOPs:  4 bytes and 3 FLOP a number; a token's cosines and sines come from L1
//   accumulator:   none
//   expected time: one launch (2 us) for up to 128 tokens of 128 heads of 64; not measured
#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"

namespace fathom {
namespace kernels {

__global__ void Rope(Rows<BF16> x, int64_t head_stride, int64_t heads, int64_t half,
                     const int32_t* positions, const float* cos_sin, int64_t max_positions,
                     const int32_t* live) {
  const int64_t t = blockIdx.x;
  if (t >= *live) return;
  const int32_t position = positions[t];
  DEVICE_CHECK(position >= 0 && position < max_positions, "rope: position", position);
  const float *cos = cos_sin + position * 2 * half, *sin = cos + half;
  for (int64_t p = threadIdx.x; p < heads * half; p += blockDim.x) {
    const int64_t i = p % half;
    BF16* pair = x[t] + p / half * head_stride + 2 * i;
    const float even = Load(pair), odd = Load(pair + 1);
    Store(pair, even * cos[i] - odd * sin[i]);
    Store(pair + 1, even * sin[i] + odd * cos[i]);
  }
}

}  // namespace kernels

void RopeCuda(OpContext& context, const RopeArgs& a) {
  if (a.x.dim(0) == 0) return;
  using namespace kernels;
  Rope<<<static_cast<unsigned>(a.x.dim(0)), 256, 0, Cuda(context).get()>>>(
      RowsOf<BF16>(a.x), a.x.stride(1), a.x.dim(1), a.x.dim(2) / 2, Data<int32_t>(a.positions),
      Data<float>(a.cos_sin), a.cos_sin.dim(0), Data<int32_t>(a.live));
  Cuda(context).CheckLaunch("rope", a.x);
}

}  // namespace fathom
