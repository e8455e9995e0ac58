// Log-probabilities on CUDA.
//   formula:       logit - log(sum of exp), of a given token, the `top` likeliest and named ids
//   data mapping:  a block of 1024 threads per logit vector; the likeliest are found one after
//                  another, each as the best of those that rank below the one before; a thread
//                  for each named id
//   bytes, FLOPs:  2 + top passes over the vector, from L2; an exponential in double per token; of
//                  ids alone only the `top` passes
//   accumulator:   double, in a tree over the block
//   expected time: 129k tokens: bytes from L2 at 35 GB/s a multiprocessor,
//                  15 us a pass; not measured
#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"

namespace fathom {
namespace kernels {

constexpr int kThreads = 1024;

struct Ranked {
  float logit;
  int32_t id;  // -1: none
};

// Whether a comes before b in the order of falling logit, lower ids first.
__device__ inline bool Before(Ranked a, Ranked b) {
  if (a.id < 0 || b.id < 0) return b.id < 0 && a.id >= 0;
  if (RanksAbove(a.logit, b.logit)) return true;
  return !RanksAbove(b.logit, a.logit) && a.id < b.id;
}

// The first in that order, in every thread.
__device__ inline Ranked BlockFirst(Ranked x, Ranked* scratch) {
  const auto warp_first = [](Ranked y) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const Ranked other = {__shfl_xor_sync(kAllLanes, y.logit, offset),
                            __shfl_xor_sync(kAllLanes, y.id, offset)};
      if (Before(other, y)) y = other;
    }
    return y;
  };
  x = warp_first(x);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  return warp_first(scratch[threadIdx.x % kWarp]);
}

// The first of a thread's tokens: ids rise, and of equal logits the one before stays.
__device__ inline Ranked FirstOfThread(const float* x, int64_t vocab) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread >= vocab) return {0, -1};
  Ranked best = {x[thread], thread};
#pragma unroll 8
  for (int64_t v = thread + kThreads; v < vocab; v += kThreads) {
    const float logit = x[v];
    if (RanksAbove(logit, best.logit)) best = {logit, static_cast<int32_t>(v)};
  }
  return best;
}
// The first of those behind `last`.
__device__ inline Ranked NextOfThread(const float* x, int64_t vocab, Ranked last) {
  Ranked best = {0, -1};
#pragma unroll 8
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads) {
    const Ranked candidate = {x[v], static_cast<int32_t>(v)};
    if (Before(last, candidate) && Before(candidate, best)) best = candidate;
  }
  return best;
}

// Of each logit vector, if it is live: a token, and what comes of it.
struct Asked {  // tokens null: ids of the likeliest alone
  const int32_t *tokens, *live;
  float* logprob;
};

// Of each logit vector, the `count` likeliest: out.
struct Likeliest {
  Slices<int32_t> ids;
  Slices<float> logprobs;
  int count;
};

// SlotIds; none: `count` is 0.
struct Named {
  const int32_t *index, *token_slot;
  int64_t tokens, slots;
  Slices<const int32_t> ids;
  Slices<float> logprobs;
  int count;
};

// One vector's, by all threads of a block.
__device__ inline void NamedLogProbs(const Named& named, int64_t vector, const float* x,
                                     int64_t vocab, double lse) {
  const int32_t token = named.index[vector];
  DEVICE_CHECK(token >= 0 && token < named.tokens, "log_probs: index", token);
  const int32_t slot = named.token_slot[token];
  DEVICE_CHECK(slot >= 0 && slot < named.slots, "log_probs: slot", slot);
  for (int i = threadIdx.x; i < named.count; i += blockDim.x) {
    const int32_t id = named.ids[slot][i];
    DEVICE_CHECK(id >= -1 && id < vocab, "log_probs: named id", id);
    named.logprobs[vector][i] = id < 0 ? NAN : static_cast<float>(x[id] - lse);
  }
}

__device__ inline double BlockLogSumExp(const float* x, int64_t vocab) {
  __shared__ float max_scratch[kWarp];
  __shared__ double sum_scratch[kWarp];
  float greatest = -INFINITY;
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads) greatest = fmaxf(greatest, x[v]);
  const double max = BlockReduce(greatest, -INFINITY, max_scratch, Max());
  double sum = 0;
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads) sum += exp(x[v] - max);
  return max + log(BlockReduce(sum, 0.0, sum_scratch, Plus()));
}

__global__ void __launch_bounds__(kThreads)
    LogProbs(Slices<const float> logits, int64_t vocab, Asked asked, Likeliest top, Named named) {
  static_assert(kThreads == kWarp * kWarp);
  AfterPriorKernels();
  __shared__ Ranked scratch[kWarp];
  const int64_t vector = blockIdx.x;
  if (vector >= *asked.live) return;
  const float* x = logits[vector];
  double lse = 0;
  if (asked.tokens != nullptr) {
    lse = BlockLogSumExp(x, vocab);
    const int32_t token = asked.tokens[vector];
    DEVICE_CHECK(token >= -1 && token < vocab, "log_probs: token", token);
    if (threadIdx.x == 0)
      asked.logprob[vector] = token < 0 ? NAN : static_cast<float>(x[token] - lse);
  }
  if (named.count > 0) NamedLogProbs(named, vector, x, vocab, lse);
  Ranked last = {0, -1};
  for (int i = 0; i < top.count; ++i) {
    const Ranked best = i == 0 ? FirstOfThread(x, vocab) : NextOfThread(x, vocab, last);
    last = BlockFirst(best, scratch);
    if (threadIdx.x == 0) {
      top.ids[vector][i] = last.id;
      if (asked.tokens != nullptr) {
        top.logprobs[vector][i] = static_cast<float>(last.logit - lse);
      }
    }
  }
}

}  // namespace kernels

void LogProbsCuda(OpContext& context, const LogProbsArgs& a) {
  if (a.logits.elements() == 0) return;
  using namespace kernels;
  Named named = {};
  if (const SlotIds& asked = a.named; !asked.logprobs.absent()) {
    named = {.index = Data<int32_t>(asked.index),
             .token_slot = Data<int32_t>(asked.token_slot),
             .tokens = asked.token_slot.dim(0),
             .slots = asked.of_slots.dim(0),
             .ids = SlicesOf<const int32_t>(asked.of_slots),
             .logprobs = SlicesOf<float>(asked.logprobs),
             .count = static_cast<int>(asked.logprobs.dim(1))};
  }
  LaunchOverlapped(
      LogProbs, static_cast<unsigned>(a.logits.dim(0)), kThreads, 0, Cuda(context).get(),
      SlicesOf<const float>(a.logits), a.logits.dim(1),
      Asked{Data<int32_t>(a.tokens), Data<int32_t>(a.live), Data<float>(a.logprob)},
      Likeliest{SlicesOf<int32_t>(a.top_ids),
                a.top_logprobs.absent() ? Slices<float>() : SlicesOf<float>(a.top_logprobs),
                static_cast<int>(a.top_ids.dim(1))},
      named);
  Cuda(context).CheckLaunch("log_probs", a.logits);
}

}  // namespace fathom
