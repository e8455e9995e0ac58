// Attention over the chunk alone, all sums in ascending order of position; then the merge:
//   lse' = log(exp(lse) + exp(lse of the chunk)),
//   out' = out exp(lse - lse') + (out of the chunk) exp(lse of the chunk - lse').
#include <algorithm>
#include <cmath>

#include "ops/reference_math.h"
#include "ops/reference_ops.h"

namespace fathom {

// A score per position, and a head's output.
size_t AttendExpandedReferenceWorkspace(const Stream&, const AttendExpandedArgs& a) {
  return (a.kv.dim(0) + a.out.dim(2)) * sizeof(float);
}

// Attention of one head of one token over the chunk's first n positions; returns its log-sum-exp.
static float AttendChunk(const AttendExpandedArgs& a, int64_t t, int64_t h, int64_t n,
                         float* scores, float* out) {
  const int64_t rope = a.rope.dim(1), nope = a.q.dim(2) - rope, vdim = a.out.dim(2);
  const float* q = a.q.Row<float>(t) + h * a.q.dim(2);
  for (int64_t j = 0; j < n; ++j) {
    const float* k = a.kv.Row<float>(j) + h * a.kv.dim(2);
    scores[j] = a.scale * (Dot(q, k, nope) + Dot(q + nope, a.rope.Row<float>(j), rope));
  }
  const float max = *std::max_element(scores, scores + n);
  float sum = 0;
  std::fill_n(out, vdim, 0.0f);
  for (int64_t j = 0; j < n; ++j) {
    const float weight = std::exp(scores[j] - max);
    const float* v = a.kv.Row<float>(j) + h * a.kv.dim(2) + nope;
    for (int64_t i = 0; i < vdim; ++i) out[i] += weight * v[i];
    sum += weight;
  }
  for (int64_t i = 0; i < vdim; ++i) out[i] /= sum;
  return max + std::log(sum);
}

static void Merge(const float* chunk, float chunk_lse, int64_t vdim, float* out, float* lse) {
  const float max = std::max(*lse, chunk_lse);
  const float merged = max + std::log(std::exp(*lse - max) + std::exp(chunk_lse - max));
  const float keep = std::exp(*lse - merged), take = std::exp(chunk_lse - merged);
  for (int64_t i = 0; i < vdim; ++i) out[i] = out[i] * keep + chunk[i] * take;
  *lse = merged;
}

void AttendExpandedReference(OpContext& context, const AttendExpandedArgs& a) {
  const int64_t context_tokens = a.kv.dim(0), vdim = a.out.dim(2);
  float* scores = reinterpret_cast<float*>(context.workspace.data());
  float* chunk = scores + context_tokens;
  for (int64_t t = 0; t < a.q.dim(0); ++t) {
    const int64_t visible =
        std::min(context_tokens, a.positions.As<int32_t>()[t] - a.context_begin + 1);
    if (visible <= 0) continue;
    for (int64_t h = 0; h < a.q.dim(1); ++h) {
      float* out = a.out.Row<float>(t) + h * vdim;
      float* lse = a.lse.Row<float>(t) + h;
      const float chunk_lse = AttendChunk(a, t, h, visible, scores, chunk);
      if (a.first) {
        std::copy_n(chunk, vdim, out);
        *lse = chunk_lse;
      } else {
        Merge(chunk, chunk_lse, vdim, out, lse);
      }
    }
  }
}

}  // namespace fathom
