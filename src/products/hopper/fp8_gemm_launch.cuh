// Launching one tile shape of fp8_gemm_kernel.cuh.
#pragma once

#include <algorithm>

#include "cuda/launch_clusters.cuh"
#include "cuda/tensor_map.h"
#include "products/hopper/fp8_gemm_kernel.cuh"
#include "products/hopper/fp8_gemm_launch.h"

namespace fathom::fp8_gemm {

template <class T>
void Launch(const Problem& problem, cudaStream_t stream) {
  static_assert(sizeof(Shared<T>) <= 227 * 1024);
  const Fp8Tokens& x = problem.x;
  const Fp8Weights& w = problem.w;
  Args args = problem.args;
  // No more tokens than a matrix can have, in whole swizzle atoms; what lies beyond is never
  // stored.
  const int64_t most_tokens = std::min(x.capacity, problem.groups.capacity);
  args.x_box_tokens = static_cast<int32_t>(std::min<int64_t>(
      T::kM / T::kXBoxes, CeilDivide(CeilDivide(most_tokens, T::kXBoxes), 8) * 8));
  args.read_once = TypicalTokens(problem.groups) <= T::kClusterM;
  args.part_tiles = static_cast<int32_t>(CeilDivide(w.part_out, T::kOut));

  // A run is all that is read of a channel of weights at a time: 256 bytes cost a fifth of the
  // rate.
  const auto codes = [](const uint8_t* data, int64_t count, int64_t width, uint32_t box_count) {
    return MakeTensorMap({.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                          .data = data,
                          .sizes = {static_cast<uint64_t>(width), static_cast<uint64_t>(count)},
                          .strides = {static_cast<uint64_t>(width)},
                          .box = {kRun, box_count},
                          .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
  };
  const CUtensorMap x_map =
      codes(x.codes, x.capacity, x.channels, static_cast<uint32_t>(args.x_box_tokens));
  const CUtensorMap weight_map =
      codes(w.codes, w.count * w.parts * w.part_out, w.in, T::kN / T::kWeightBoxes);
  const CUtensorMap x_scale_map = MakeTensorMap(
      {.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
       .data = x.scales,
       .sizes = {static_cast<uint64_t>(x.scale_pitch), static_cast<uint64_t>(args.runs)},
       .strides = {static_cast<uint64_t>(x.scale_pitch) * sizeof(float)},
       .box = {T::kScaleTokens, 1},
       .swizzle = CU_TENSOR_MAP_SWIZZLE_NONE});

  Gpu::OfThread().AllowSharedMemory(Kernel<T>, sizeof(Shared<T>));
  // Capacities decide the grid: the most tiles that the live tokens could make.
  const int64_t across = CeilDivide((T::kSilu ? 1 : w.parts) * args.part_tiles, T::kXBoxes);
  const int64_t down =
      std::min(w.count * CeilDivide(problem.groups.capacity, T::kClusterM),
               CeilDivide(x.capacity, T::kClusterM) + std::min(w.count, x.capacity));
  // Of chains a block has no other tile.
  const int64_t most = T::kShare == Share::kTile ? across * down : Multiprocessors() / T::kBlocks;
  const int64_t clusters = std::clamp<int64_t>(across * down, 1, most);
  LaunchClusters(Kernel<T>,
                 {.clusters = clusters,
                  .blocks = T::kBlocks,
                  .threads = T::kThreads,
                  .shared_bytes = sizeof(Shared<T>)},
                 stream, Maps{x_map, x_scale_map, weight_map}, args);
}

}  // namespace fathom::fp8_gemm
