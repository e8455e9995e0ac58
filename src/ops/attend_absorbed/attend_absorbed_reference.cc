// Scores of all positions first, then their softmax, then the sum over latents: all in fp32, in
// ascending order of position (dot products as Dot says).
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/page_tokens.h"
#include "ops/reference_math.h"
#include "ops/reference_ops.h"

namespace fathom {

// A key of a page, and a score per head and position.
size_t AttendAbsorbedReferenceWorkspace(const Stream&, const AttendAbsorbedArgs& a) {
  const int64_t positions = a.tokens.page_table.dim(1) * kPageTokens;
  return (a.pages.latent.dim(2) + a.pages.rope.dim(2) + a.q_latent.dim(1) * positions) *
         sizeof(float);
}

// scores[j] = exp(scores[j] - max); returns their sum.
static float Exponentiate(float* scores, int64_t n) {
  const float max = *std::max_element(scores, scores + n);
  float sum = 0;
  for (int64_t j = 0; j < n; ++j) sum += scores[j] = std::exp(scores[j] - max);
  return sum;
}

static void AttendToken(const AttendAbsorbedArgs& a, int64_t t, float* latent, float* rope,
                        float* scores) {
  const int64_t heads = a.q_latent.dim(1), width = a.pages.latent.dim(2);
  const int64_t max_pages = a.tokens.page_table.dim(1), stride = max_pages * kPageTokens;
  const int64_t n = int64_t{a.tokens.positions.As<int32_t>()[t]} + 1;
  const int32_t* table = SlotPages(a.tokens.page_table, a.tokens.slots.As<int32_t>()[t]);
  for (int64_t j = 0; j < n; ++j) {
    const int32_t page = PageOf(table, max_pages, j, a.pages);
    LoadLatent(a.pages, page, j, latent);
    LoadRope(a.pages, page, j, rope);
    for (int64_t h = 0; h < heads; ++h) {
      const float* q_rope = a.q_rope.As<float>(t) + h * a.q_rope.stride(1);
      scores[h * stride + j] = a.scale * (Dot(a.q_latent.As<float>(t) + h * width, latent, width) +
                                          Dot(q_rope, rope, a.pages.rope.dim(2)));
    }
  }
  float* out = a.out.As<float>(t);
  std::fill_n(out, heads * width, 0.0f);
  for (int64_t h = 0; h < heads; ++h) {
    const float sum = Exponentiate(scores + h * stride, n);
    for (int64_t j = 0; j < n; ++j) scores[h * stride + j] /= sum;
  }
  for (int64_t j = 0; j < n; ++j) {
    LoadLatent(a.pages, PageOf(table, max_pages, j, a.pages), j, latent);
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < width; ++i) out[h * width + i] += scores[h * stride + j] * latent[i];
    }
  }
}

void AttendAbsorbedReference(OpContext& context, const AttendAbsorbedArgs& a) {
  float* latent = reinterpret_cast<float*>(context.workspace.data());
  float* rope = latent + a.pages.latent.dim(2);
  float* scores = rope + a.pages.rope.dim(2);
  for (int64_t t = 0; t < *a.tokens.live.As<int32_t>(); ++t) {
    AttendToken(a, t, latent, rope, scores);
  }
}

}  // namespace fathom
