// Gathering of slots' contexts on CUDA.
//   formula:       (latent, rope)[at + i] = page[begin + i], of each piece
//   data mapping:  a warp per position, 16 bytes a lane where nothing is to be scaled
//   bytes, FLOPs:  reads 1 to 4 and writes 2 bytes a number; no arithmetic
//   accumulator:   none
//   expected time: 4096 positions of 576 in BF16, 9.4 MB: 3 us; not measured
#include "ops/page_tokens.cuh"

namespace fathom {
namespace kernels {

constexpr int kPositions = 8;  // of a block

// The warp copies a place.
template <class T>
__device__ void CopyVector(const T* from, float scale, int64_t width, BF16* to) {
  const int lane = threadIdx.x % kWarp;
  if (std::is_same_v<T, BF16> && width % 8 == 0) {
    for (int64_t i = lane; i < width / 8; i += kWarp) {
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    }
  } else {
    for (int64_t i = lane; i < width; i += kWarp) Store(to + i, Load(from + i) * scale);
  }
}

template <class T>
__global__ void __launch_bounds__(kPositions* kWarp)
    GatherContext(Pages<T> pages, const int32_t* table, int64_t max_pages,
                  const __grid_constant__ ContextPieces pieces, Slices<BF16> latent,
                  Slices<BF16> rope) {
  AfterPriorKernels();
  const auto at = static_cast<int32_t>(blockIdx.x * kPositions + threadIdx.x / kWarp);
  int i = 0;
  while (i < pieces.count && at >= pieces.of[i].at + pieces.of[i].count) ++i;
  if (i == pieces.count) return;
  const ContextPiece& piece = pieces.of[i];
  const int64_t position = piece.begin + (at - piece.at);
  const int32_t page = PageOf(table + piece.slot * max_pages, max_pages, position, pages);
  CopyVector(pages.Latent(page, position), pages.LatentScale(page, position), pages.latent_dim,
             latent[at]);
  CopyVector(pages.Rope(page, position), 1, pages.rope_dim, rope[at]);
}

template <class T>
void LaunchGatherContext(cudaStream_t stream, const GatherContextArgs& a) {
  LaunchOverlapped(GatherContext<T>, Blocks(a.latent.dim(0), kPositions), kPositions * kWarp, 0,
                   stream, PagesOf<T>(a.pages), Data<int32_t>(a.page_table), a.page_table.dim(1),
                   ContextPieces(a.pieces), SlicesOf<BF16>(a.latent), SlicesOf<BF16>(a.rope));
}

}  // namespace kernels

void GatherContextCuda(OpContext& context, const GatherContextArgs& a) {
  if (a.latent.dim(0) == 0) return;
  kernels::WithLatentType(a.pages, [&](auto type) {
    kernels::LaunchGatherContext<decltype(type)>(Cuda(context).get(), a);
  });
  Cuda(context).CheckLaunch("gather_context", a.latent);
}

}  // namespace fathom
