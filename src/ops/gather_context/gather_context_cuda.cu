// Gathering of slots' contexts on CUDA.
//   formula:       (latent, rope)[at + i] = page[begin + i], of each piece
//   data mapping:  a block per position
//   bytes, FLOPs:  reads 1 to 4 and writes 2 bytes a number; no arithmetic
//   accumulator:   none
//   expected time: one launch (2 us) for 512 positions of 576; not measured
#include "ops/page_rows.cuh"

namespace fathom {
namespace kernels {

template <class T>
__global__ void GatherContext(Pages<T> pages, const int32_t* table, int64_t max_pages,
                              const __grid_constant__ ContextPieces pieces, Rows<BF16> latent,
                              Rows<BF16> rope) {
  const auto at = static_cast<int32_t>(blockIdx.x);
  int i = 0;
  while (at >= pieces.of[i].at + pieces.of[i].count) ++i;
  const ContextPiece& piece = pieces.of[i];
  const int64_t position = piece.begin + (at - piece.at);
  const int32_t page = PageOf(table + piece.slot * max_pages, max_pages, position, pages);
  const T* from = pages.Latent(page, position);
  const float scale = pages.LatentScale(page, position);
  for (int64_t c = threadIdx.x; c < pages.latent_dim; c += blockDim.x) {
    Store(latent[at] + c, Load(from + c) * scale);
  }
  const auto* key = pages.Rope(page, position);
  for (int64_t c = threadIdx.x; c < pages.rope_dim; c += blockDim.x) {
    Store(rope[at] + c, Load(key + c));
  }
}

template <class T>
void LaunchGatherContext(cudaStream_t stream, const GatherContextArgs& a) {
  GatherContext<T><<<static_cast<unsigned>(a.latent.dim(0)), 128, 0, stream>>>(
      PagesOf<T>(a.pages), Data<int32_t>(a.page_table), a.page_table.dim(1),
      ContextPieces(a.pieces), RowsOf<BF16>(a.latent), RowsOf<BF16>(a.rope));
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
