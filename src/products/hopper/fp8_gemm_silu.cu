// The FP8 product's tile shapes that end in silu(gate) * up, quantised.
#include "products/hopper/fp8_gemm_launch.cuh"

namespace fathom::fp8_gemm {

void LaunchSiluTile(Fp8SiluTile tile, const Problem& problem, cudaStream_t stream) {
  switch (tile) {
    case Fp8SiluTile::kAuto: CHECK(false, "fp8_gemm: no tile was chosen");
    case Fp8SiluTile::k64x64Pair:
      return Launch<Tile<1, 2, 1, 1, 64, 8, Share::kX, 2, true>>(problem, stream);
    case Fp8SiluTile::k128x128:
      return Launch<Tile<2, 1, 1, 2, 128, 4, Share::kNone, 1, true>>(problem, stream);
    case Fp8SiluTile::k128x128Pair:
      return Launch<Tile<2, 1, 1, 2, 128, 4, Share::kWeights, 2, true>>(problem, stream);
  }
}

}  // namespace fathom::fp8_gemm
