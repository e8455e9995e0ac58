#include "ops/rotate_and_cache/compose_rotate_and_cache.h"

namespace fathom {

void ComposeRotateAndCache(OpContext& context, const RotateAndCacheArgs& a,
                           const Op<RmsNormArgs>& rms_norm, const Op<RopeArgs>& rope,
                           const Op<CacheWriteArgs>& cache_write) {
  const int64_t tokens = a.kv_a.dim(0), width = a.kv_a.dim(1);
  const int64_t latent_dim = a.pages.latent.dim(2), rope_dim = a.pages.rope.dim(2);
  const TensorView latent = a.kv_a.Slice(1, 0, latent_dim);
  const TensorView key = a.kv_a.Slice(1, latent_dim, width);
  const int64_t stride = key.stride(0);
  const TensorView key_head(key.data(), key.dtype(), {tokens, 1, rope_dim}, {stride, stride, 1});
  rms_norm(
      context,
      {.x = latent, .weight = a.latent_norm, .eps = a.eps, .live = a.tokens.live, .out = latent});
  for (const TensorView& x : {a.q_rope, key_head}) {
    rope(context,
         {.x = x, .positions = a.tokens.positions, .cos_sin = a.cos_sin, .live = a.tokens.live});
  }
  cache_write(context, {.latent = latent, .rope = key, .tokens = a.tokens, .pages = a.pages});
}

}  // namespace fathom
