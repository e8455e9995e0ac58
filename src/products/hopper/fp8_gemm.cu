// The FP8 product's tile shapes for plain outputs.
#include "products/hopper/fp8_gemm_launch.cuh"

namespace fathom::fp8_gemm {

// Warpgroups along tokens and channels, units of each along tokens and channels, channels of a
// unit, stages (they fill the shared memory), what a cluster's blocks share, and how many they are.
void LaunchTile(Fp8Tile tile, const Problem& problem, cudaStream_t stream) {
  switch (tile) {
    case Fp8Tile::kAuto: CHECK(false, "fp8_gemm: no tile was chosen");
    case Fp8Tile::k64x32: return Launch<Tile<1, 1, 1, 1, 32, 16>>(problem, stream);
    case Fp8Tile::k64x64: return Launch<Tile<1, 1, 1, 1, 64, 12>>(problem, stream);
    case Fp8Tile::k64x128: return Launch<Tile<1, 2, 1, 1, 64, 8>>(problem, stream);
    case Fp8Tile::k128x64: return Launch<Tile<2, 1, 1, 1, 64, 8>>(problem, stream);
    case Fp8Tile::k128x128: return Launch<Tile<2, 1, 1, 1, 128, 6>>(problem, stream);
    case Fp8Tile::k128x192: return Launch<Tile<2, 1, 1, 1, 192, 5>>(problem, stream);
    case Fp8Tile::k256x128Pair:
      return Launch<Tile<2, 1, 2, 1, 128, 4, Share::kX, 2>>(problem, stream);
    case Fp8Tile::k128x256Pair:
      return Launch<Tile<2, 1, 1, 2, 128, 4, Share::kWeights, 2>>(problem, stream);
    case Fp8Tile::k128x64Folds:
      return Launch<Tile<2, 1, 1, 1, 64, 8, Share::kNone, 1, false, true>>(problem, stream);
    case Fp8Tile::k128x128FoldsPair:
      return Launch<Tile<2, 1, 1, 1, 128, 6, Share::kX, 2, false, true>>(problem, stream);
    default: return LaunchChains(tile, problem, stream);
  }
}

}  // namespace fathom::fp8_gemm
