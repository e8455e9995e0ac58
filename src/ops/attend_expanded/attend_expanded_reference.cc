// Attention over a piece alone, all sums in ascending order of position; then the merge:
//   lse' = log(exp(lse) + exp(lse of the piece)),
//   out' = out exp(lse - lse') + (out of the piece) exp(lse of the piece - lse').
#include <algorithm>
#include <cmath>

#include "ops/attend_expanded/row_piece.h"
#include "ops/reference_math.h"
#include "ops/reference_ops.h"
#include "tensor/buffer.h"

namespace fathom {

namespace {

// A score per position, and a head's output.
struct HeadFloats {
  HeadFloats(Arena& arena, const AttendExpandedArgs& a)
      : scores(arena.Allocate(DType::kF32, {a.kv.dim(0)}).As<float>()),
        out(arena.Allocate(DType::kF32, {a.out.dim(2)}).As<float>()) {}

  float *scores, *out;
};

}  // namespace

size_t AttendExpandedReferenceWorkspace(const Stream&, const AttendExpandedArgs& a) {
  Arena arena = Arena::Measuring();
  HeadFloats(arena, a);
  return arena.used();
}

struct Query {
  int64_t token, head;
  int64_t visible;  // positions of the piece, from its first on
};

// Attention of one head of one token over what it sees of the piece; returns its log-sum-exp.
static float Attend(const RowPiece& a, float scale, const Query& query, float* scores, float* out) {
  const auto [t, h, n] = query;
  const int64_t rope = a.rope.dim(1), nope = a.q.dim(2) - rope, vdim = a.out.dim(2);
  const float* q = a.q.As<float>(t) + h * a.q.dim(2);
  for (int64_t j = 0; j < n; ++j) {
    const float* k = a.kv.As<float>(j) + h * a.kv.dim(2);
    scores[j] = scale * (Dot(q, k, nope) + Dot(q + nope, a.rope.As<float>(j), rope));
  }
  const float max = *std::max_element(scores, scores + n);
  float sum = 0;
  std::fill_n(out, vdim, 0.0f);
  for (int64_t j = 0; j < n; ++j) {
    const float weight = std::exp(scores[j] - max);
    const float* v = a.kv.As<float>(j) + h * a.kv.dim(2) + nope;
    for (int64_t i = 0; i < vdim; ++i) out[i] += weight * v[i];
    sum += weight;
  }
  for (int64_t i = 0; i < vdim; ++i) out[i] /= sum;
  return max + std::log(sum);
}

static void Merge(const float* piece, float piece_lse, int64_t vdim, float* out, float* lse) {
  const float max = std::max(*lse, piece_lse);
  const float merged = max + std::log(std::exp(*lse - max) + std::exp(piece_lse - max));
  const float keep = std::exp(*lse - merged), take = std::exp(piece_lse - merged);
  for (int64_t i = 0; i < vdim; ++i) out[i] = out[i] * keep + piece[i] * take;
  *lse = merged;
}

static void AttendPiece(const RowPiece& a, float scale, const HeadFloats& floats) {
  const auto [scores, piece] = floats;
  const int64_t context = a.kv.dim(0), vdim = a.out.dim(2);
  for (int64_t t = 0; t < a.q.dim(0); ++t) {
    const int64_t visible = std::min(context, a.positions.As<int32_t>()[t] - a.begin + 1);
    if (visible <= 0) continue;
    for (int64_t h = 0; h < a.q.dim(1); ++h) {
      float* out = a.out.As<float>(t) + h * vdim;
      float* lse = a.lse.As<float>(t) + h;
      const float piece_lse = Attend(a, scale, {t, h, visible}, scores, piece);
      if (a.first()) {
        std::copy_n(piece, vdim, out);
        *lse = piece_lse;
      } else {
        Merge(piece, piece_lse, vdim, out, lse);
      }
    }
  }
}

void AttendExpandedReference(OpContext& context, const AttendExpandedArgs& a) {
  Arena arena(context.workspace.data(), context.workspace.size());
  const HeadFloats floats(arena, a);
  for (const ContextPiece& piece : a.pieces) AttendPiece(RowPiece(a, piece), a.scale, floats);
}

}  // namespace fathom
