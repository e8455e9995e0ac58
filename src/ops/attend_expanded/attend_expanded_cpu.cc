// Expanded attention (attend_tokens_cpu.cc), split over groups of tokens and heads.
#include "ops/attend_expanded/attend_expanded_cpu.h"

#include <algorithm>

#include "ops/attend_expanded/row_piece.h"
#include "ops/cpu_ops.h"
#include "tensor/buffer.h"

namespace fathom {

static TensorView WorkspacePerThread(Arena& arena, const AttendExpandedArgs& a, int threads) {
  return arena.Allocate(DType::kF32, {threads, AttendTokensWorkspace(a.q.dim(2), a.out.dim(2))});
}

size_t AttendExpandedCpuWorkspace(const Stream& stream, const AttendExpandedArgs& a) {
  Arena arena = Arena::Measuring();
  WorkspacePerThread(arena, a, Threads(stream));
  return arena.used();
}

static void AttendPiece(OpContext& context, const RowPiece& a, float scale,
                        const TensorView& workspace) {
  const int64_t tokens = a.q.dim(0), heads = a.q.dim(1), value_dim = a.out.dim(2);
  const int64_t groups = (tokens + kTokenGroup - 1) / kTokenGroup;
  const int64_t cost = std::min(tokens, kTokenGroup) * a.kv.dim(0) * a.kv.dim(2) / 8;
  Pool(context).ParallelFor(heads * groups, Grain(cost),
                            [&](int64_t begin, int64_t end, int thread) {
                              for (int64_t i = begin; i < end; ++i) {
                                const int64_t head = i / groups, t = i % groups * kTokenGroup;
                                Attend({
                                    .q = a.q.As<float>(t) + head * a.q.dim(2),
                                    .q_stride = a.q.stride(0),
                                    .tokens = std::min(kTokenGroup, tokens - t),
                                    .positions = a.positions.As<int32_t>() + t,
                                    .kv = a.kv.As<float>() + head * a.kv.dim(2),
                                    .rope = a.rope.As<float>(),
                                    .kv_stride = a.kv.stride(0),
                                    .context = a.kv.dim(0),
                                    .context_begin = a.begin,
                                    .nope_dim = a.q.dim(2) - a.rope.dim(1),
                                    .rope_dim = a.rope.dim(1),
                                    .value_dim = value_dim,
                                    .scale = scale,
                                    .first = a.first(),
                                    .out = a.out.As<float>(t) + head * value_dim,
                                    .lse = a.lse.As<float>(t) + head,
                                    .out_stride = a.out.stride(0),
                                    .lse_stride = a.lse.stride(0),
                                    .workspace = workspace.As<float>(thread),
                                });
                              }
                            });
}

void AttendExpandedCpu(OpContext& context, const AttendExpandedArgs& a) {
  Arena arena(context.workspace.data(), context.workspace.size());
  const TensorView workspace = WorkspacePerThread(arena, a, Threads(context.stream));
  for (const ContextPiece& piece : a.pieces) {
    AttendPiece(context, RowPiece(a, piece), a.scale, workspace);
  }
}

}  // namespace fathom
