// Advancing slots past a step, on CUDA.
//   formula:       as ops.h says
//   data mapping:  a warp per row, whose lanes compare a token with the stop tokens; a slot has one
//                  row in a step
//   bytes, FLOPs:  some 300 bytes a row, of them 256 of stop tokens; no arithmetic
//   accumulator:   none
//   expected time: one launch (2 us); not measured
#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"

namespace fathom {
namespace kernels {

constexpr int kCommitThreads = 128;

struct CommitParams {
  const int32_t *row_slot, *row_begin, *positions, *logit_begin, *sampled, *live_rows;
  const int32_t* min_tokens;
  Slices<const int32_t> stop_tokens;
  int32_t* row_count;
  int64_t rows, tokens, samples, slots, vocab, stops;
  int32_t *last_token, *length, *generated, *ended, *counts;
};

// Takes the tokens that were sampled; returns how many of them stand. The same in all lanes.
__device__ inline int TakeSampled(const CommitParams& p, int32_t slot, const int32_t* tokens,
                                  int count, int lane) {
  const int32_t before = p.generated[slot], min_tokens = p.min_tokens[slot];
  int stand = 0, taken = 0;
  bool ended = false;
  while (stand < count && !ended) {
    const int32_t token = tokens[stand];
    DEVICE_CHECK(token < p.vocab, "commit: token", token);
    bool stop = false;
    for (int64_t i = lane; i < p.stops; i += kWarp) stop |= p.stop_tokens[slot][i] == token;
    ended = token < 0 || (__any_sync(kAllLanes, stop) && before + taken >= min_tokens);
    ++stand;
    if (token < 0) break;
    ++taken;
    if (lane == 0) ++p.counts[slot * p.vocab + token];
  }
  if (lane == 0) {
    if (taken > 0) p.last_token[slot] = tokens[taken - 1];
    p.generated[slot] = before + taken;
    if (ended) p.ended[slot] = 1;
  }
  return stand;
}

__global__ void Commit(CommitParams p) {
  AfterPriorKernels();
  const int64_t r = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  if (r >= p.rows || r >= *p.live_rows) return;
  const int32_t slot = p.row_slot[r], begin = p.row_begin[r], end = p.row_begin[r + 1];
  const int32_t logits = p.logit_begin[r], samples = p.logit_begin[r + 1] - logits;
  DEVICE_CHECK(slot >= 0 && slot < p.slots, "commit: slot", slot);
  DEVICE_CHECK(begin <= end && end <= p.tokens, "commit: end of row", end);
  DEVICE_CHECK(logits + samples <= p.samples, "commit: sample", logits + samples);
  if (begin == end) return;
  const int32_t count = p.row_count[r], taken = count - (end - begin - samples);
  DEVICE_CHECK(count <= end - begin && taken >= min(samples, 1), "commit: tokens stand", count);
  const int32_t stand = count - taken + TakeSampled(p, slot, p.sampled + logits, taken, lane);
  if (lane == 0) {
    p.row_count[r] = stand;
    p.length[slot] = p.positions[begin] + stand;
  }
}

}  // namespace kernels

void CommitCuda(OpContext& context, const CommitArgs& a) {
  if (a.row_slot.dim(0) == 0) return;
  using namespace kernels;
  const CommitParams params = {.row_slot = Data<int32_t>(a.row_slot),
                               .row_begin = Data<int32_t>(a.row_begin),
                               .positions = Data<int32_t>(a.positions),
                               .logit_begin = Data<int32_t>(a.logit_begin),
                               .sampled = Data<int32_t>(a.sampled),
                               .live_rows = Data<int32_t>(a.live_rows),
                               .min_tokens = Data<int32_t>(a.slots.min_tokens),
                               .stop_tokens = SlicesOf<const int32_t>(a.slots.stop_tokens),
                               .row_count = Data<int32_t>(a.row_count),
                               .rows = a.row_slot.dim(0),
                               .tokens = a.positions.dim(0),
                               .samples = a.sampled.dim(0),
                               .slots = a.slots.counts.dim(0),
                               .vocab = a.slots.counts.dim(1),
                               .stops = a.slots.stop_tokens.dim(1),
                               .last_token = Data<int32_t>(a.slots.last_token),
                               .length = Data<int32_t>(a.slots.length),
                               .generated = Data<int32_t>(a.slots.generated),
                               .ended = Data<int32_t>(a.slots.ended),
                               .counts = Data<int32_t>(a.slots.counts)};
  LaunchOverlapped(Commit, Blocks(params.rows * kWarp, kCommitThreads), kCommitThreads, 0,
                   Cuda(context).get(), params);
  Cuda(context).CheckLaunch("commit", a.row_slot);
}

}  // namespace fathom
