// Cache write on CUDA.
//   formula:       page[position] = (latent, rotated key)
//   data mapping:  a block per token
//   bytes, FLOPs:  reads 2 and writes 1 to 4 bytes a number; none but an FP8 cache's quantisation
//   accumulator:   none; an FP8 latent's largest number by a tree over the block
//   expected time: one launch (2 us) for up to 128 tokens of 576; not measured
#include "ops/page_rows.cuh"

namespace fathom {
namespace kernels {

template <class T>
__global__ void CacheWrite(Rows<const BF16> latent, Rows<const BF16> rope, Tokens tokens,
                           Pages<T> pages) {
  const int64_t t = blockIdx.x;
  if (t >= *tokens.live) return;
  const int64_t position = tokens.positions[t];
  const int32_t page = PageOf(tokens.Table(t), tokens.max_pages, position, pages);
  __shared__ float scratch[kWarp];
  const BF16* from = latent[t];
  StoreLatent(
      pages, page, position, [from](int64_t i) { return Load(from + i); }, scratch);
  auto* to = pages.Rope(page, position);
  for (int64_t i = threadIdx.x; i < pages.rope_dim; i += blockDim.x) {
    Store(to + i, Load(rope[t] + i));
  }
}

template <class T>
void LaunchCacheWrite(cudaStream_t stream, const CacheWriteArgs& a) {
  CacheWrite<T><<<static_cast<unsigned>(a.latent.dim(0)), 128, 0, stream>>>(
      RowsOf<const BF16>(a.latent), RowsOf<const BF16>(a.rope), TokensOf(a.tokens),
      PagesOf<T>(a.pages));
}

}  // namespace kernels

void CacheWriteCuda(OpContext& context, const CacheWriteArgs& a) {
  if (a.latent.dim(0) == 0) return;
  kernels::WithLatentType(a.pages, [&](auto type) {
    kernels::LaunchCacheWrite<decltype(type)>(Cuda(context).get(), a);
  });
  Cuda(context).CheckLaunch("cache_write", a.latent);
}

}  // namespace fathom
