// Where products of weights that shared memory holds pay, and their launch.
#include <algorithm>

#include "cuda/gpu.h"
#include "cuda/launch_early.cuh"
#include "cuda/tensor_map.h"
#include "products/hopper/bf16_held.cuh"

namespace fathom {
namespace bf16_held {
namespace {

__global__ void __launch_bounds__(kThreads)
    Kernel(const __grid_constant__ CUtensorMap weight_map, const __grid_constant__ Args a) {
  Block block(a, static_cast<int32_t>(blockIdx.x), static_cast<int32_t>(blockIdx.y));
  if (threadIdx.x == 0) block.AskForWeights(weight_map);
  if (!a.wait_first) AllowNextKernel();
  WaitForPriorKernels();
  if (a.wait_first) AllowNextKernel();
  const int32_t live = min(__ldcg(a.live), a.tokens);
  block.LoadTokens();
  __syncthreads();
  block.Multiply(live);
}

}  // namespace

Launch LaunchOf(const Bf16ProductParams& p) {
  const auto u64 = [](int64_t x) { return static_cast<uint64_t>(x); };
  const int64_t parts = p.in / kPartChannels;
  return {.weight_map = MakeTensorMap({.data = p.w,
                                       .sizes = {u64(p.in), u64(p.count * p.out)},
                                       .strides = {u64(p.in) * 2},
                                       .box = {kBf16Chunk, kOut},
                                       .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B}),
          .args = {.x = reinterpret_cast<const __nv_bfloat16*>(p.x),
                   .y = p.y,
                   .live = p.live,
                   .x_stride = p.x_stride,
                   .x_head_stride = p.x_head_stride,
                   .y_stride = p.y_stride,
                   .y_head_stride = p.y_head_stride,
                   .out = static_cast<int32_t>(p.out),
                   .parts = static_cast<int32_t>(parts),
                   .tokens = static_cast<int32_t>(p.tokens),
                   .f32 = p.f32,
                   .wait_first = p.wait_first},
          .tiles = CeilDivide(p.out, kOut),
          .shared_bytes = static_cast<size_t>(SharedBytes(parts))};
}

}  // namespace bf16_held

bool Bf16HeldFits(const Bf16ProductParams& p) {
  using namespace bf16_held;
  const int64_t parts = p.in / kPartChannels;
  if (p.ids != nullptr || p.counts != nullptr || p.silu || p.tokens > kTokens ||
      p.in % kPartChannels != 0 || parts > kMostParts) {
    return false;
  }
  const int64_t at_once = std::min(kMostBlocks, kShared / (SharedBytes(parts) + 1024));
  return CeilDivide(p.out, kOut) * p.count <= at_once * Multiprocessors();
}

void LaunchBf16Held(const Bf16ProductParams& p, cudaStream_t stream) {
  using namespace bf16_held;
  const Launch launch = LaunchOf(p);
  const dim3 blocks(static_cast<unsigned>(launch.tiles), static_cast<unsigned>(p.count));
  Gpu::OfThread().AllowSharedMemory(Kernel, kShared - 1024);
  Gpu::OfThread().Check(LaunchEarly(Kernel, blocks, kThreads, launch.shared_bytes, stream,
                                    launch.weight_map, launch.args));
}

}  // namespace fathom
