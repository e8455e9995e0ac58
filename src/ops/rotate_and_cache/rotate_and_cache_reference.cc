#include "ops/page_tokens.h"
#include "ops/reference_ops.h"

namespace fathom {

// Of one head, in place.
static void Rotate(const float* cos, const float* sin, int64_t half, float* x) {
  for (int64_t i = 0; i < half; ++i) {
    const float even = x[2 * i], odd = x[2 * i + 1];
    x[2 * i] = even * cos[i] - odd * sin[i];
    x[2 * i + 1] = even * sin[i] + odd * cos[i];
  }
}

void RotateAndCacheReference(OpContext& context, const RotateAndCacheArgs& a) {
  const TokenMap& map = a.tokens;
  const int64_t latent_dim = a.pages.latent.dim(2), half = a.pages.rope.dim(2) / 2;
  const TensorView latent = a.kv_a.Slice(1, 0, latent_dim);
  RmsNormReference(
      context,
      {.x = latent, .weight = a.latent_norm, .eps = a.eps, .live = map.live, .out = latent});
  for (int64_t t = 0; t < *map.live.As<int32_t>(); ++t) {
    const int32_t position = map.positions.As<int32_t>()[t];
    CHECK(position >= 0 && position < a.cos_sin.dim(0), "rotate_and_cache: position {} of {}",
          position, a.cos_sin.dim(0));
    const float *cos = a.cos_sin.As<float>(position), *sin = cos + half;
    for (int64_t h = 0; h < a.q_rope.dim(1); ++h) {
      Rotate(cos, sin, half, a.q_rope.As<float>(t) + h * a.q_rope.stride(1));
    }
    float* key = a.kv_a.As<float>(t) + latent_dim;
    Rotate(cos, sin, half, key);
    const int32_t* table = SlotPages(map.page_table, map.slots.As<int32_t>()[t]);
    const int32_t page = PageOf(table, map.page_table.dim(1), position, a.pages);
    StoreLatent(a.pages, page, position, latent.As<float>(t));
    StoreRope(a.pages, page, position, key);
  }
}

}  // namespace fathom
