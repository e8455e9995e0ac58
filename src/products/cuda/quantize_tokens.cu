// Quantisation of activations for FP8 products.
//   formula:       scale = max(max|x|, 1e-10) / 448 over 128 channels; code = E4M3(x / scale)
//   data mapping:  16 lanes per run, 8 channels each
//   bytes, FLOPs:  reads 2, writes 1 byte a channel; about 20 operations a channel
//   accumulator:   none
//   builds on:     scales of 1x128, found online: the DeepSeek-V3 report, section 3.3
//   expected time: 4096 tokens of 7168: 88 MB at the device's bandwidth
#include "products/cuda/quantize_tokens.h"

#include "cuda/kernels.cuh"
#include "products/cuda/quantize_vector.cuh"

namespace fathom {
namespace {

constexpr int kQuantizeThreads = 256;

// kPlaced: tokens go to places.
template <class X, bool kPlaced>
__global__ void __launch_bounds__(kQuantizeThreads) QuantizeTokens(const QuantizeTokensParams p) {
  if (!kPlaced) AllowNextKernel();
  WaitForPriorKernels();
  if (kPlaced) AllowNextKernel();  // after the wait: experts' products read early what was sorted
  const int64_t token = blockIdx.x, vector = int64_t{blockIdx.y} * kQuantizeThreads + threadIdx.x;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  // A lane's of the next 32, asked for together with what else there is; tokens past the live are
  // there.
  const auto places_from = [&](int32_t copy) {
    return copy + lane < p.copies ? p.places[token * p.copies + copy + lane] : 0;
  };
  int32_t places = kPlaced ? places_from(0) : 0;
  if (token >= *p.live) return;
  const bool live = vector * kVector < p.channels;
  Vector x = {};
  if (live) x = ReadVector(static_cast<const X*>(p.x) + token * p.stride + vector * kVector);
  const float scale = ScaleOf(x, p.out.scale_ue8m0);
  const uint2 codes = Codes(x, scale);
  if (!kPlaced) {
    if (live) StoreCodes(p.out, token, p.channels, vector, codes, scale);
    return;
  }
  for (int32_t copy = 0; copy < p.copies; ++copy) {
    if (copy % 32 == 0 && copy > 0) places = places_from(copy);
    const int32_t place = __shfl_sync(kAllLanes, places, copy % 32);
    if (live) StoreCodes(p.out, place, p.channels, vector, codes, scale);
  }
}

}  // namespace

void LaunchQuantizeTokens(const QuantizeTokensParams& p, cudaStream_t stream) {
  if (p.capacity == 0) return;
  const int64_t vectors = (p.channels + kVector - 1) / kVector;
  const dim3 blocks(static_cast<unsigned>(p.capacity),
                    static_cast<unsigned>((vectors + kQuantizeThreads - 1) / kQuantizeThreads));
  CHECK(!p.x_f32 || p.places == nullptr, "quantize_tokens: places of F32");
  const auto kernel = p.x_f32               ? QuantizeTokens<float, false>
                      : p.places == nullptr ? QuantizeTokens<__nv_bfloat16, false>
                                            : QuantizeTokens<__nv_bfloat16, true>;
  kernels::LaunchOverlapped(kernel, blocks, kQuantizeThreads, 0, stream, p);
}

}  // namespace fathom
