// Split over logit vectors.
#include "ops/cpu_ops.h"
#include "ops/log_probs/log_probs_vector.h"
#include "tensor/buffer.h"

namespace fathom {

static TensorView OrderPerThread(Arena& arena, const LogProbsArgs& a, int threads) {
  return arena.Allocate(DType::kI32, {threads, a.logits.dim(1)});
}

size_t LogProbsCpuWorkspace(const Stream& stream, const LogProbsArgs& a) {
  Arena arena = Arena::Measuring();
  OrderPerThread(arena, a, Threads(stream));
  return arena.used();
}

void LogProbsCpu(OpContext& context, const LogProbsArgs& a) {
  Arena arena(context.workspace.data(), context.workspace.size());
  const TensorView order = OrderPerThread(arena, a, Threads(context.stream));
  Pool(context).ParallelFor(Live(a.live, a.logits.dim(0)), Grain(10 * a.logits.dim(1)),
                            [&](int64_t vector, int64_t end, int thread) {
                              for (; vector < end; ++vector) {
                                LogProbsVector(a, vector, order.As<int32_t>(thread));
                              }
                            });
}

}  // namespace fathom
