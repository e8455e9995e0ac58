// What MLA does between projections and scores, on CUDA, in one kernel.
//   formula:       latent / sqrt(mean(latent^2) + eps) * weight -> page; key, rotated -> page;
//                  queries rotated in place
//   data mapping:  blocks of 256 threads: one per token for latent and key, and one per token and
//                  256 pairs of the queries
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

constexpr int kThreads = 256;

// Turns pair i from `from` to `to`, which may be one.
template <class To>
__device__ void Rotate(const BF16* from, To* to, const float* cos_sin, int64_t half, int64_t i) {
  const float even = Load(from + 2 * i), odd = Load(from + 2 * i + 1);
  const float cos = cos_sin[i], sin = cos_sin[half + i];
  Store(to + 2 * i, even * cos - odd * sin);
  Store(to + 2 * i + 1, even * sin + odd * cos);
}

template <class T>
__global__ void __launch_bounds__(kThreads) RotateAndCache(Rotation a, Pages<T> pages) {
  WaitForPriorKernels();
  AllowNextKernel();  // after the wait: HeadLinearArgs::beside_last relies on it
  __shared__ float scratch[kWarp];
  const int64_t t = blockIdx.x, half = pages.rope_dim / 2;
  const int32_t live = *a.tokens.live;
  const int64_t position = a.tokens.positions[t];  // does not wait for `live`
  if (t >= live) return;
  DEVICE_CHECK(position < a.max_positions, "rotate_and_cache: position", position);
  const float* cos_sin = a.cos_sin + position * 2 * half;
  if (blockIdx.y > 0) {
    const int64_t pair = (int64_t{blockIdx.y} - 1) * kThreads + threadIdx.x, head = pair / half;
    BF16* query = a.q_rope[t] + head * a.head_stride;
    if (head < a.heads) Rotate(query, query, cos_sin, half, pair % half);
    return;
  }
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
  for (int64_t i = threadIdx.x; i < half; i += kThreads) {
    Rotate(key, pages.Rope(page, position), cos_sin, half, i);
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
  const dim3 grid(static_cast<unsigned>(a.kv_a.dim(0)),
                  1 + Blocks(rotation.heads * a.q_rope.dim(2) / 2, kThreads));
  LaunchOverlapped(RotateAndCache<T>, grid, kThreads, 0, stream, rotation, PagesOf<T>(a.pages));
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
