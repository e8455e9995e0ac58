// What MLA does between projections and scores, on CPUs.
//   formula:       latent / sqrt(mean(latent^2) + eps) weight -> page; key, rotated -> page;
//                  queries rotated in place
//   data mapping:  a thread takes tokens with all their heads; latents are normed before
//   bytes, FLOPs:  reads and writes 4 bytes a channel of latent, key and queries; 3 to 5 FLOPs
//   accumulator:   that of rms_norm
//   expected time: [1, 128, 64]: some microseconds on one core; not measured
#include "ops/cpu_ops.h"
#include "ops/page_tokens.h"

namespace fathom {
namespace {

// Of one head, in place.
void Rotate(const float* cos, const float* sin, int64_t half, float* x) {
  for (int64_t i = 0; i < half; ++i) {
    const float even = x[2 * i], odd = x[2 * i + 1];
    x[2 * i] = even * cos[i] - odd * sin[i];
    x[2 * i + 1] = even * sin[i] + odd * cos[i];
  }
}

// Its latent is normed already.
void RotateAndCacheToken(const RotateAndCacheArgs& a, int64_t t) {
  const TokenMap& map = a.tokens;
  const int32_t position = map.positions.As<int32_t>()[t];
  CHECK(position >= 0 && position < a.cos_sin.dim(0), "rotate_and_cache: position {} of {}",
        position, a.cos_sin.dim(0));
  const int64_t half = a.pages.rope.dim(2) / 2;
  const float *cos = a.cos_sin.As<float>(position), *sin = cos + half;
  for (int64_t h = 0; h < a.q_rope.dim(1); ++h) {
    Rotate(cos, sin, half, a.q_rope.As<float>(t) + h * a.q_rope.stride(1));
  }
  float *latent = a.kv_a.As<float>(t), *key = latent + a.pages.latent.dim(2);
  Rotate(cos, sin, half, key);
  const int32_t* table = SlotPages(map.page_table, map.slots.As<int32_t>()[t]);
  const int32_t page = PageOf(table, map.page_table.dim(1), position, a.pages);
  StoreLatent(a.pages, page, position, latent);
  StoreRope(a.pages, page, position, key);
}

}  // namespace

void RotateAndCacheCpu(OpContext& context, const RotateAndCacheArgs& a) {
  const TensorView latent = a.kv_a.Slice(1, 0, a.pages.latent.dim(2)), live = a.tokens.live;
  RmsNormCpu(context,
             {.x = latent, .weight = a.latent_norm, .eps = a.eps, .live = live, .out = latent});
  const int64_t channels = a.kv_a.dim(1) + 2 * a.q_rope.dim(1) * a.q_rope.dim(2);
  Pool(context).ParallelFor(Live(live, a.kv_a.dim(0)), Grain(channels),
                            [&](int64_t begin, int64_t end, int) {
                              for (int64_t t = begin; t < end; ++t) RotateAndCacheToken(a, t);
                            });
}

}  // namespace fathom
