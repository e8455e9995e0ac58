#include "ops/attend_expanded/flash_attend_cuda.h"

#include "cuda/gpu.h"
#include "cuda/tensor_map.h"
#include "ops/attend_expanded/flash_attend_step.h"

namespace fathom {

void LaunchFlashAttend(const FlashAttendParams& p, cudaStream_t stream) {
  CHECK(p.scale > 0);
  constexpr uint64_t kQueryBytes = 2 * (kFlashNope + kFlashRope);
  constexpr uint64_t kKvBytes = 2 * (kFlashNope + kFlashValue);
  const uint64_t tokens = p.tokens, heads = p.heads, context = p.context;
  const uint64_t token_bytes = p.q_stride > 0 ? 2 * p.q_stride : heads * kQueryBytes;
  int32_t blocks = 0;
  for (const ContextPiece& piece : p.pieces) blocks += (piece.tokens + 127) / 128 * p.heads;
  if (blocks == 0 || p.context == 0) return;
  const int groups = blocks <= Gpu::OfThread().multiprocessors() / 2 ? 1 : 2;
  // Chunks of 64 values: of all tile rows of a box the first, then the second, ...
  const flash::Maps maps = {
      .q = MakeTensorMap({.data = p.q,
                          .sizes = {64, tokens, 3, heads},
                          .strides = {token_bytes, 128, kQueryBytes},
                          .box = {64, flash::kTokensOfGroup, 3, 1}}),
      .kv = MakeTensorMap({.data = p.kv,
                           .sizes = {64, context, 4, heads},
                           .strides = {heads * kKvBytes, 128, kKvBytes},
                           .box = {64, flash::kKeys, 2, 1}}),
      .rope = MakeTensorMap({.data = p.rope,
                             .sizes = {64, context},
                             .strides = {kFlashRope * 2},
                             .box = {64, flash::kKeys}}),
  };
  constexpr float kLog2E = 1.4426950408889634f;
  const flash::Step step = {.positions = p.positions,
                            .out = static_cast<__nv_bfloat16*>(p.out),
                            .lse = p.lse,
                            .heads = p.heads,
                            .scale_log2 = p.scale * kLog2E,
                            .pieces = ContextPieces(p.pieces)};
  Gpu::OfThread().Check(flash::StartFlashAttend(maps, step, groups, stream));
}

}  // namespace fathom
