// Scores of all positions first, then their softmax, then the sum over latents: all in fp32, in
// ascending order of position (dot products as Dot says).
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/page_tokens.h"
#include "ops/reference_math.h"
#include "ops/reference_ops.h"
#include "tensor/buffer.h"

namespace fathom {

namespace {

// A key of a page, and a score per head and position.
struct TokenFloats {
  TokenFloats(Arena& arena, const AttendAbsorbedArgs& a)
      : latent(arena.Allocate(DType::kF32, {a.pages.latent.dim(2)}).As<float>()),
        rope(arena.Allocate(DType::kF32, {a.pages.rope.dim(2)}).As<float>()),
        scores(arena
                   .Allocate(DType::kF32,
                             {a.q_latent.dim(1), a.tokens.page_table.dim(1) * kPageTokens})
                   .As<float>()) {}

  float *latent, *rope, *scores;
};

}  // namespace

size_t AttendAbsorbedReferenceWorkspace(const Stream&, const AttendAbsorbedArgs& a) {
  Arena arena = Arena::Measuring();
  TokenFloats(arena, a);
  return arena.used();
}

// scores[j] = exp(scores[j] - max); returns their sum.
static float Exponentiate(float* scores, int64_t n) {
  const float max = *std::max_element(scores, scores + n);
  float sum = 0;
  for (int64_t j = 0; j < n; ++j) sum += scores[j] = std::exp(scores[j] - max);
  return sum;
}

static void AttendToken(const AttendAbsorbedArgs& a, int64_t t, const TokenFloats& floats) {
  const auto [latent, rope, scores] = floats;
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
  Arena arena(context.workspace.data(), context.workspace.size());
  const TokenFloats floats(arena, a);
  for (int64_t t = 0; t < *a.tokens.live.As<int32_t>(); ++t) AttendToken(a, t, floats);
  if (a.values.weight != nullptr) HeadLinearReference(context, a.values);
}

}  // namespace fathom
