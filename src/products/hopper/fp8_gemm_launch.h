// What the host code of the FP8 product and its kernels say to each other.
#pragma once

#include <cuda.h>

#include "products/hopper/fp8_gemm.h"
#include "products/hopper/gemm_launch.h"

namespace fathom::fp8_gemm {

constexpr int kRun = 128;       // channels of a stage: those that share a scale; 128 bytes
constexpr int kMostRuns = 160;  // 20480 channels

// What a kernel needs besides the tensor maps.
struct Args {
  const float* weight_scales;  // [groups, parts, scale_groups, runs]
  const int32_t* counts;       // null: one group, of `live` tokens
  const int32_t* begins;
  const int32_t* live;
  void* out;          // BF16, F32, or E4M3 codes
  float* out_scales;  // of E4M3 codes
  int64_t out_stride, out_scale_pitch;
  int32_t groups, group_capacity;
  int32_t parts, part_out, part_tiles;  // of the weights; a block's tiles along part_out
  int32_t runs, scale_groups;
  int32_t x_box_tokens;
  int32_t chains;
  bool f32, ue8m0;
  bool read_once;         // weights: by one tile of tokens each
  bool counts_are_there;  // before the launch before has ended
};

struct Maps {
  CUtensorMap x, x_scales, weights;
};

// Everything but what the tile decides.
struct Problem {
  Fp8Tokens x;
  Fp8Weights w;
  Fp8TokenGroups groups;
  Args args;
};

// Tokens of one matrix to choose for.
inline int64_t TypicalTokens(const Fp8TokenGroups& groups) {
  return groups.typical > 0 ? groups.typical : groups.capacity;
}

void LaunchTile(Fp8Tile tile, const Problem& problem, cudaStream_t stream);
void LaunchChains(Fp8Tile tile, const Problem& problem, cudaStream_t stream);
void LaunchSiluTile(Fp8SiluTile tile, const Problem& problem, cudaStream_t stream);

}  // namespace fathom::fp8_gemm
