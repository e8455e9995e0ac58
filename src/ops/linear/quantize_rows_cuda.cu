// Quantisation of activations for FP8 products.
//   formula:       scale = max(max|x|, 1e-10) / 448 over 128 channels; code = E4M3(x / scale)
//   data mapping:  16 lanes per run, 8 channels each
//   bytes, FLOPs:  reads 2, writes 1 byte a channel; about 20 operations a channel
//   accumulator:   none
//   expected time: 4096 rows of 7168: 88 MB at the device's bandwidth
#include "ops/linear/quantize_rows_cuda.h"

#include "ops/cuda_kernels.cuh"
#include "ops/linear/quantize_vector.cuh"

namespace fathom {
namespace {

constexpr int kQuantizeThreads = 256;

__global__ void __launch_bounds__(kQuantizeThreads) QuantizeRows(const QuantizeRowsParams p) {
  kernels::AfterPriorKernels();
  const int64_t row = blockIdx.x, vector = int64_t{blockIdx.y} * kQuantizeThreads + threadIdx.x;
  if (row >= *p.live) return;
  const bool live = vector * kVector < p.channels;
  Vector x = {};
  if (live) x = Unpack(AsVectors(p.x + row * p.stride)[vector]);
  const float scale = ScaleOf(x, p.out.scale_ue8m0);
  if (!live) return;
  const uint2 codes = Codes(x, scale);
  if (p.places == nullptr) {
    StoreCodes(p.out, row, p.channels, vector, codes, scale);
  } else {
    for (int32_t copy = 0; copy < p.copies; ++copy) {
      const int32_t place = p.places[row * p.copies + copy];
      StoreCodes(p.out, place, p.channels, vector, codes, scale);
    }
  }
}

}  // namespace

void LaunchQuantizeRows(const QuantizeRowsParams& p, cudaStream_t stream) {
  if (p.capacity == 0) return;
  const int64_t vectors = (p.channels + kVector - 1) / kVector;
  const dim3 blocks(static_cast<unsigned>(p.capacity),
                    static_cast<unsigned>((vectors + kQuantizeThreads - 1) / kQuantizeThreads));
  kernels::LaunchOverlapped(QuantizeRows, blocks, kQuantizeThreads, 0, stream, p);
}

}  // namespace fathom
