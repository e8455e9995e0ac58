// Cache write on CUDA.
//   formula:       page[position] = (latent, rotated key)
//   data mapping:  a block per token
//   bytes, FLOPs:  4 bytes a number; no arithmetic
//   accumulator:   none
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
  T* to = pages.Latent(page, position);
  for (int64_t i = threadIdx.x; i < pages.latent_dim; i += blockDim.x) {
    Store(to + i, Load(latent[t] + i));
  }
  to = pages.Rope(page, position);
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
  const bool bf16 = a.pages.latent.dtype() == DType::kBF16;
  (bf16 ? kernels::LaunchCacheWrite<BF16> : kernels::LaunchCacheWrite<float>)(Cuda(context).get(),
                                                                              a);
  Cuda(context).CheckLaunch("cache_write", a.latent);
}

}  // namespace fathom
