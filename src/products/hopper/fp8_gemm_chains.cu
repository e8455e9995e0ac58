// The FP8 product's tile shapes whose chains are shared out among the blocks of a cluster.
#include "products/hopper/fp8_gemm_launch.cuh"

namespace fathom::fp8_gemm {

template <int kChains>
static void LaunchChainsOf(Fp8Tile tile, const Problem& problem, cudaStream_t stream) {
  switch (tile) {
    case Fp8Tile::k64x64Chains:
      return Launch<Tile<1, 1, 1, 1, 64, 11, Share::kTile, kChains>>(problem, stream);
    case Fp8Tile::k64x128Chains:
      return Launch<Tile<1, 2, 1, 1, 64, 7, Share::kTile, kChains>>(problem, stream);
    case Fp8Tile::k128x128Chains:
      return Launch<Tile<2, 1, 1, 1, 128, 4, Share::kTile, kChains>>(problem, stream);
    default: CHECK(false, "fp8_gemm: tile {} has no chains", static_cast<int>(tile));
  }
}

void LaunchChains(Fp8Tile tile, const Problem& problem, cudaStream_t stream) {
  switch (problem.args.chains) {
    case 2: return LaunchChainsOf<2>(tile, problem, stream);
    case 3: return LaunchChainsOf<3>(tile, problem, stream);
    case 4: return LaunchChainsOf<4>(tile, problem, stream);
    default: CHECK(false, "fp8_gemm: {} chains", problem.args.chains);
  }
}

}  // namespace fathom::fp8_gemm
