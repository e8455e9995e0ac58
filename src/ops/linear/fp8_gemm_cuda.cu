// The FP8 product's tile shapes for plain outputs.
#include "ops/linear/fp8_gemm_launch.cuh"

namespace fathom::fp8_gemm {

// Warpgroups along rows and channels, units of each along rows and channels, channels of a unit,
// stages (they fill the shared memory).
cudaError_t LaunchTile(Fp8Tile tile, const Problem& problem, cudaStream_t stream) {
  switch (tile) {
    case Fp8Tile::kAuto: break;
    case Fp8Tile::k64x16: return Launch<Tile<1, 1, 1, 1, 16, 18>>(problem, stream);
    case Fp8Tile::k64x32: return Launch<Tile<1, 1, 1, 1, 32, 16>>(problem, stream);
    case Fp8Tile::k64x64: return Launch<Tile<1, 1, 1, 1, 64, 12>>(problem, stream);
    case Fp8Tile::k64x128: return Launch<Tile<1, 2, 1, 1, 64, 8>>(problem, stream);
    case Fp8Tile::k64x192: return Launch<Tile<1, 3, 1, 1, 64, 6>>(problem, stream);
    case Fp8Tile::k128x32: return Launch<Tile<2, 1, 1, 1, 32, 10>>(problem, stream);
    case Fp8Tile::k128x64: return Launch<Tile<2, 1, 1, 1, 64, 8>>(problem, stream);
    case Fp8Tile::k128x128: return Launch<Tile<2, 1, 1, 1, 128, 6>>(problem, stream);
    case Fp8Tile::k256x128: return Launch<Tile<2, 1, 2, 1, 128, 4>>(problem, stream);
    case Fp8Tile::k256x128Pair:
      return Launch<Tile<2, 1, 2, 1, 128, 4, Share::kX, 2>>(problem, stream);
    case Fp8Tile::kTry1:
      return Launch<Tile<1, 1, 1, 1, 64, 5, Share::kNone, 1, false, 2>>(problem, stream);
    case Fp8Tile::kTry2:
      return Launch<Tile<1, 1, 1, 1, 64, 5, Share::kX, 2, false, 2>>(problem, stream);
    case Fp8Tile::kTry3:
      return Launch<Tile<1, 1, 1, 1, 32, 7, Share::kNone, 1, false, 2>>(problem, stream);
    case Fp8Tile::kTry4: return Launch<Tile<2, 1, 1, 1, 128, 6, Share::kX, 2>>(problem, stream);
    case Fp8Tile::kTry5: return Launch<Tile<1, 1, 1, 1, 64, 12, Share::kX, 2>>(problem, stream);
    case Fp8Tile::kTry6: return Launch<Tile<1, 3, 1, 1, 64, 6, Share::kX, 2>>(problem, stream);
    case Fp8Tile::kTry7: return Launch<Tile<2, 1, 1, 1, 64, 8, Share::kX, 2>>(problem, stream);
    case Fp8Tile::kTry8: return Launch<Tile<1, 2, 1, 1, 64, 8, Share::kX, 2>>(problem, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace fathom::fp8_gemm
