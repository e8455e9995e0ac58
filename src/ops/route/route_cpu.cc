// Scores of all experts, then the choice per token (choose_experts.cc).
//   formula:       logit[t][e] = x[t] . gate[e]
//   data mapping:  lanes along the hidden dimension, 4 tokens x 4 experts at a time; threads take
//                  groups of experts
//   bytes, FLOPs:  4 x experts x hidden bytes of gate per 128 tokens; 2 FLOPs per weight and token
//   accumulator:   fp32, a sum per lane, then over lanes
//   expected time: [1, 7168] x [256, 7168]: 7.3 MB at read bandwidth; not measured
#include <algorithm>

#include "cpu/simd.h"
#include "ops/cpu_ops.h"
#include "ops/route/choose_experts.h"
#include "tensor/buffer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/route/route_cpu.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "products/cpu/dot_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {

// logits[t][e] for kTokens tokens from t and kExperts experts from e.
template <int kTokens, int kExperts>
HWY_INLINE void LogitBlock(const RouteArgs& a, int64_t t, int64_t e, const TensorView& logits) {
  VF sum[kTokens][kExperts];
  SetZero(sum);
  AddProducts<kTokens, kExperts>(a.x.As<float>(t), a.x.stride(0), a.gate.As<float>(e),
                                 a.gate.stride(0), a.gate.dim(1), sum);
  for (int r = 0; r < kTokens; ++r) {
    for (int c = 0; c < kExperts; ++c) {
      logits.As<float>(t + r)[e + c] = hn::GetLane(hn::SumOfLanes(DF(), sum[r][c]));
    }
  }
}

template <int kExperts>
HWY_INLINE void LogitsOf(const RouteArgs& a, int64_t t, int64_t tokens, int64_t e,
                         const TensorView& logits) {
  for (; tokens - t >= kDotTokens; t += kDotTokens)
    LogitBlock<kDotTokens, kExperts>(a, t, e, logits);
  for (; t < tokens; ++t) LogitBlock<1, kExperts>(a, t, e, logits);
}

// Tokens [t, tokens), experts [e, end).
void Logits(const RouteArgs& a, int64_t t, int64_t tokens, int64_t e, int64_t end,
            const TensorView& logits) {
  for (; end - e >= kDotColumns; e += kDotColumns) LogitsOf<kDotColumns>(a, t, tokens, e, logits);
  for (; e < end; ++e) LogitsOf<1>(a, t, tokens, e, logits);
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {

HWY_EXPORT(Logits);

namespace {

constexpr int64_t kTokenBlock = 128, kExpertBlock = 4;

struct Buffers {
  Buffers(Arena& arena, const RouteArgs& a, int threads)
      : logits(arena.Allocate(DType::kF32, {a.x.dim(0), a.gate.dim(0)})),
        choice(arena.Allocate(DType::kF32, {threads, a.gate.dim(0)})),
        groups(arena.Allocate(DType::kF32, {threads, a.n_group})),
        order(arena.Allocate(DType::kI32, {threads, a.gate.dim(0)})) {}
  TensorView logits, choice, groups, order;
};

}  // namespace

size_t RouteCpuWorkspace(const Stream& stream, const RouteArgs& a) {
  Arena arena = Arena::Measuring();
  Buffers(arena, a, Threads(stream));
  return arena.used();
}

void RouteCpu(OpContext& context, const RouteArgs& a) {
  if (!a.norm.absent()) RmsNormCpu(context, a.norm);
  Arena arena(context.workspace.data(), context.workspace.size());
  const Buffers b(arena, a, Threads(context.stream));
  const int64_t tokens = Live(a.live, a.x.dim(0)), experts = a.gate.dim(0);
  for (int64_t t = 0; t < tokens; t += kTokenBlock) {
    const int64_t end = std::min(tokens, t + kTokenBlock);
    // A few tokens cost what reading the gate does.
    const int64_t bytes = int64_t{sizeof(float)} * a.gate.dim(1);
    const int64_t grain = Grain(std::max((end - t) * a.gate.dim(1) / 8, bytes));
    Pool(context).ParallelFor(experts, (grain + kExpertBlock - 1) / kExpertBlock * kExpertBlock,
                              [&](int64_t e, int64_t last, int) {
                                HWY_DYNAMIC_DISPATCH(Logits)(a, t, end, e, last, b.logits);
                              });
  }
  Pool(context).ParallelFor(tokens, Grain(20 * experts),
                            [&](int64_t begin, int64_t end, int thread) {
                              for (int64_t t = begin; t < end; ++t) {
                                ChooseExperts(a, t,
                                              {.scores = b.logits.As<float>(t),
                                               .choice = b.choice.As<float>(thread),
                                               .groups = b.groups.As<float>(thread),
                                               .order = b.order.As<int32_t>(thread)});
                              }
                            });
}

}  // namespace fathom
#endif  // HWY_ONCE
