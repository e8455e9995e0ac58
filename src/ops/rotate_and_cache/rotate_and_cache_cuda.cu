// What MLA does between projections and scores, on CUDA, in one kernel.
//   formula:       latent / sqrt(mean(latent^2) + eps) * weight -> page; key, rotated -> page;
//                  queries rotated in place
//   data mapping:  a block of 256 threads per token: a thread per two channels of the latent, then
//                  per pair of key and queries
//   bytes, FLOPs:  6 bytes a channel of latent and key, 4 of the queries; 4 FLOP a number
//   accumulator:   fp32 per thread, then a tree over the block
//   expected time: one launch (3 us) for up to 128 tokens; not measured
#include "ops/page_rows.cuh"

namespace fathom {
namespace kernels {

struct Rotation {
  Rows<const BF16> kv_a;
  const float* latent_norm;
  float eps;
  Rows<BF16> q_rope;
  int64_t head_stride, heads, max_positions;
  const float* cos_sin;
  Tokens tokens;
};

template <class T>
__global__ void __launch_bounds__(256) RotateAndCache(Rotation a, Pages<T> pages) {
  AfterPriorKernels();
  __shared__ float scratch[kWarp];
  const int64_t t = blockIdx.x;
  if (t >= *a.tokens.live) return;
  const int64_t position = a.tokens.positions[t], half = pages.rope_dim / 2;
  DEVICE_CHECK(position < a.max_positions, "rotate_and_cache: position", position);
  const int32_t page = PageOf(a.tokens.Table(t), a.tokens.max_pages, position, pages);
  const BF16 *latent = a.kv_a[t], *key = latent + pages.latent_dim;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < pages.latent_dim; i += blockDim.x) {
    sum += Load(latent + i) * Load(latent + i);
  }
  sum = BlockReduce(sum, 0.0f, scratch, Plus());
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(pages.latent_dim) + a.eps);
  const auto normed = [&](int64_t i) { return Load(latent + i) * scale * a.latent_norm[i]; };
  StoreLatent(pages, page, position, normed, scratch);
  // Pairs of the key, then of each head's query.
  const float *cos = a.cos_sin + position * 2 * half, *sin = cos + half;
  auto* key_to = pages.Rope(page, position);
  for (int64_t p = threadIdx.x; p < (a.heads + 1) * half; p += blockDim.x) {
    const int64_t head = p / half - 1, i = p % half;
    BF16* query = a.q_rope[t] + head * a.head_stride + 2 * i;
    const BF16* from = head < 0 ? key + 2 * i : query;
    const float even = Load(from), odd = Load(from + 1);
    const float x = even * cos[i] - odd * sin[i], y = even * sin[i] + odd * cos[i];
    if (head < 0) {
      Store(key_to + 2 * i, x);
      Store(key_to + 2 * i + 1, y);
    } else {
      Store(query, x);
      Store(query + 1, y);
    }
  }
}

template <class T>
void LaunchRotateAndCache(cudaStream_t stream, const RotateAndCacheArgs& a) {
  const Rotation rotation = {.kv_a = RowsOf<const BF16>(a.kv_a),
                             .latent_norm = Data<float>(a.latent_norm),
                             .eps = a.eps,
                             .q_rope = RowsOf<BF16>(a.q_rope),
                             .head_stride = a.q_rope.stride(1),
                             .heads = a.q_rope.dim(1),
                             .max_positions = a.cos_sin.dim(0),
                             .cos_sin = Data<float>(a.cos_sin),
                             .tokens = TokensOf(a.tokens)};
  LaunchOverlapped(RotateAndCache<T>, static_cast<unsigned>(a.kv_a.dim(0)), 256, 0, stream,
                   rotation, PagesOf<T>(a.pages));
}

}  // namespace kernels

void RotateAndCacheCuda(OpContext& context, const RotateAndCacheArgs& a) {
  if (a.kv_a.dim(0) == 0) return;
  kernels::WithLatentType(a.pages, [&](auto type) {
    kernels::LaunchRotateAndCache<decltype(type)>(Cuda(context).get(), a);
  });
  Cuda(context).CheckLaunch("rotate_and_cache", a.kv_a);
}

}  // namespace fathom
