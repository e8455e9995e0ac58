// The FP8 block-scaled product on Hopper (sm_90a): y = x W^T with E4M3 tokens that have a scale per
// 128 channels and E4M3 weights that have a scale per 128x128 tile; one matrix, or one per expert.
//
// The 128 channels of a run are multiplied and added by the tensor core; the run's sum, times both
// scales, is added in fp32 in order of runs, or of some in chains (fp8_chains.h), whatever the
// tile: a token's bits do not depend on how many tokens there are, unless that is given up.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "products/hopper/fp8_chains.h"

namespace fathom {

// Activations as LaunchQuantizeTokens (products/cuda/quantize_tokens.h) makes them.
struct Fp8Tokens {
  const uint8_t* codes = nullptr;  // E4M3 [capacity, channels]; aligned to 16 bytes
  const float* scales = nullptr;   // F32 [ceil(channels / 128), scale_pitch]; aligned to 16 bytes
  int64_t capacity = 0;
  int64_t channels = 0;     // a multiple of 16
  int64_t scale_pitch = 0;  // Fp8ScalePitch of at least the capacity
};
// Places in memory of one run's scales: each run has its own lines of the L2, because all blocks
// read the same run at about the same time.
inline int64_t Fp8ScalePitch(int64_t capacity) {
  return (capacity + 31) / 32 * 32;
}

// `count` matrices of `parts` parts (gate and up: 2) of [part_out, in] that follow each other along
// the output dimension, each part with its own scale tiles.
struct Fp8Weights {
  const uint8_t* codes = nullptr;  // E4M3 [count, parts, part_out, in]; aligned to 16 bytes
  const float* scales = nullptr;   // F32 [count, parts, ceil(part_out / 128), ceil(in / 128)]
  int64_t count = 1;
  int64_t parts = 1;
  int64_t part_out = 0;  // a multiple of 8
  int64_t in = 0;        // a multiple of 16
};

// Of a dense product's sums.
inline int Fp8ChainsOf(const Fp8Weights& w) {
  return w.count == 1 && w.parts == 1 ? Fp8Chains(w.part_out, w.in) : 1;
}

// Which live tokens of x belong to which matrix. Counts and begins are on the device. Dense: one
// count. Tokens sorted by expert: counts and begins. [experts, capacity, channels]: counts only.
struct Fp8TokenGroups {
  const int32_t* counts = nullptr;  // [weights.count]
  const int32_t* begins = nullptr;  // [weights.count], or null: matrix g's begin at g * capacity
  int64_t capacity = 0;             // the most tokens of one matrix
  int64_t typical = 0;              // tokens of a matrix to choose the tile for; 0: capacity
};

enum class Fp8GemmOutput : uint8_t { kBF16, kF32 };

// Tiles of the output by one block: tokens x channels. Of k256x128Pair and k128x128FoldsPair two
// blocks of a cluster share the tokens' activations, of k128x256Pair the weights. Of chains a block
// for each shares the tile; a block of folds has all, one after the other. kAuto chooses by shape.
enum class Fp8Tile : uint8_t {
  kAuto,
  k64x32,
  k64x64,
  k64x128,
  k128x64,
  k128x128,
  k128x192,
  k256x128Pair,
  k128x256Pair,
  // Where there are several chains (fp8_chains.h), and only there:
  k64x64Chains,
  k64x128Chains,
  k128x128Chains,
  k128x64Folds,
  k128x128FoldsPair,
};

// out[token] = x[token] W[its matrix]^T.
struct Fp8GemmParams {
  Fp8Tokens x;
  Fp8Weights w;
  Fp8TokenGroups groups;
  void* out = nullptr;     // BF16 or F32 [capacity of x, out_stride]; aligned to 16 bytes
  int64_t out_stride = 0;  // elements; a multiple of 8
  Fp8GemmOutput output = Fp8GemmOutput::kBF16;
  // Else a sum of several chains may be one, by a tile without chains: kAuto takes such a tile
  // where there are so many tokens that it is faster.
  bool batch_invariant = true;
  Fp8Tile tile = Fp8Tile::kAuto;
  // The launch before had waited for counts and begins before it let this one begin.
  bool counts_early = false;
};
void LaunchFp8Gemm(const Fp8GemmParams& params, cudaStream_t stream);

// Two blocks of k64x64Pair share activations, of k128x128Pair the weights of gate and up.
enum class Fp8SiluTile : uint8_t { kAuto, k64x64Pair, k128x128, k128x128Pair };

// out[token] = quantised(silu(gate) * up), gate and up being the two parts of the token's product,
// in fp32 up to the quantisation of each 128 channels (quant/e4m3.h, QuantizeRun).
struct Fp8GemmSiluParams {
  Fp8Tokens x;
  Fp8Weights w;  // two parts of a multiple of 16 outputs
  Fp8TokenGroups groups;
  uint8_t* out = nullptr;       // E4M3 [capacity of x, part_out]
  float* out_scales = nullptr;  // F32 [ceil(part_out / 128), out_scale_pitch]
  int64_t out_scale_pitch = 0;
  bool scale_ue8m0 = false;
  Fp8SiluTile tile = Fp8SiluTile::kAuto;
  bool counts_early = false;  // as in Fp8GemmParams
};
void LaunchFp8GemmSilu(const Fp8GemmSiluParams& params, cudaStream_t stream);

}  // namespace fathom
