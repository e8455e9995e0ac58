// Another type for numbers, on CUDA.
//   formula:       out = x, rounded to nearest even
//   data mapping:  blocks of 256 channels of one token
//   bytes, FLOPs:  6 bytes a number; no arithmetic
//   accumulator:   none
//   expected time: one launch (2 us) for up to 128 tokens of 7168; not measured
#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"

namespace fathom {
namespace kernels {

template <class From, class To>
__global__ void ConvertTokens(const From* x, int64_t width, const int32_t* live, To* out) {
  AfterPriorKernels();
  const int64_t t = blockIdx.x, i = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (t >= *live || i >= width) return;
  Store(out + t * width + i, Load(x + t * width + i));
}

}  // namespace kernels

void ConvertCuda(OpContext& context, const ConvertArgs& a) {
  if (a.x.elements() == 0) return;
  using namespace kernels;
  const int64_t width = a.x.dim(1);
  const dim3 grid(static_cast<unsigned>(a.x.dim(0)), Blocks(width, 256));
  const cudaStream_t stream = Cuda(context).get();
  const auto* live = Data<int32_t>(a.live);
  if (a.x.dtype() == DType::kF32) {
    LaunchOverlapped(ConvertTokens<float, BF16>, grid, 256, 0, stream, Data<const float>(a.x),
                     width, live, Data<BF16>(a.out));
  } else {
    LaunchOverlapped(ConvertTokens<BF16, float>, grid, 256, 0, stream, Data<const BF16>(a.x), width,
                     live, Data<float>(a.out));
  }
  Cuda(context).CheckLaunch("convert", a.x);
}

}  // namespace fathom
