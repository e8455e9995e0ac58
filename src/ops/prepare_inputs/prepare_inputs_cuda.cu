// A step's inputs from plan and slots, on CUDA.
//   formula:       live tokens of each row, and where they stand, as ops.h says
//   data mapping:  a block per row, which counts the live tokens of the rows before it
//   bytes, FLOPs:  some 20 bytes a token, 30 for each pair of rows, from L2; no arithmetic
//   accumulator:   none
//   expected time: one launch (2 us) up to some 256 rows; not measured
#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"

namespace fathom {
namespace kernels {

constexpr int kInputThreads = 128;

struct Plan {
  const int32_t *row_slot, *row_capacity, *plan_tokens, *plan_begin, *plan_samples, *live_rows;
  const int32_t *last_token, *length, *final_length, *ended, *num_drafts;
  Slices<const int32_t> drafts;
  int64_t tokens, slots, logits, passes, expanded_tokens, pass_vectors;
  int32_t *ids, *positions, *token_slot, *live_tokens, *absorbed_live;
  int32_t *row_begin, *row_count, *logit_begin, *logit_index, *logit_ordinal, *pass_live;

  __device__ bool IsDecode(int r) const { return plan_begin[r] == -1; }
  __device__ int LiveTokens(int r) const {
    const int32_t slot = row_slot[r], capacity = row_capacity[r + 1] - row_capacity[r];
    DEVICE_CHECK(slot >= 0 && slot < slots, "prepare_inputs: slot", slot);
    if (!IsDecode(r)) return capacity;
    if (ended[slot] != 0) return 0;
    const int32_t left = final_length[slot] - 1 - length[slot];
    return max(0, min(min(capacity, 1 + num_drafts[slot]), left));
  }
  __device__ int LogitVectors(int r, int live) const {
    return plan_samples[r] == 0 ? 0 : IsDecode(r) ? live : 1;
  }
};

// The sums of all threads' numbers.
__device__ inline int2 SumOverBlock(int2 sum) {
  __shared__ int2 of_warps[kInputThreads / kWarp];
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    sum.x += __shfl_xor_sync(kAllLanes, sum.x, offset);
    sum.y += __shfl_xor_sync(kAllLanes, sum.y, offset);
  }
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = sum;
  __syncthreads();
  sum = {0, 0};
  for (const int2& of_warp : of_warps) sum.x += of_warp.x, sum.y += of_warp.y;
  return sum;
}

// What follows the last row.
__device__ inline void PrepareTotals(const Plan& p, int rows, int tokens, int logits) {
  if (threadIdx.x == 0) {
    p.row_begin[rows] = *p.live_tokens = tokens;
    p.logit_begin[rows] = logits;
    *p.absorbed_live = tokens - static_cast<int32_t>(p.expanded_tokens);
  }
  for (int64_t pass = threadIdx.x; pass < p.passes; pass += kInputThreads) {
    const int64_t left = logits - pass * p.pass_vectors;
    p.pass_live[pass] = static_cast<int32_t>(left < 0 ? 0 : min(left, p.pass_vectors));
  }
}

__global__ void PrepareInputs(Plan p) {
  AfterPriorKernels();
  const int r = static_cast<int>(blockIdx.x), rows = *p.live_rows;
  if (rows == 0 && r == 0) PrepareTotals(p, 0, 0, 0);
  if (r >= rows) return;
  int2 before = {0, 0};  // tokens and logit vectors of the rows before
  for (int q = static_cast<int>(threadIdx.x); q < r; q += kInputThreads) {
    const int live = p.LiveTokens(q);
    before.x += live, before.y += p.LogitVectors(q, live);
  }
  before = SumOverBlock(before);
  const int live = p.LiveTokens(r), logit_vectors = p.LogitVectors(r, live);
  const int32_t end = before.x + live, logit_end = before.y + logit_vectors;
  DEVICE_CHECK(live >= 0 && end <= p.tokens, "prepare_inputs: end of row", end);
  DEVICE_CHECK(logit_end <= p.logits, "prepare_inputs: logit vectors", logit_end);
  const int32_t slot = p.row_slot[r], first = p.row_capacity[r];
  const bool decode = p.IsDecode(r);
  const int32_t begin = decode ? p.length[slot] : p.plan_begin[r];
  for (int i = static_cast<int>(threadIdx.x); i < live; i += kInputThreads) {
    const int32_t t = before.x + i;
    p.ids[t] = !decode  ? p.plan_tokens[first + i]
               : i == 0 ? p.last_token[slot]
                        : p.drafts[slot][i - 1];
    p.positions[t] = begin + i;
    p.token_slot[t] = slot;
  }
  for (int i = static_cast<int>(threadIdx.x); i < logit_vectors; i += kInputThreads) {
    p.logit_index[before.y + i] = end - logit_vectors + i;
    p.logit_ordinal[before.y + i] = i;
  }
  if (threadIdx.x == 0) {
    p.row_begin[r] = before.x;
    p.row_count[r] = live;
    p.logit_begin[r] = before.y;
  }
  if (r == rows - 1) PrepareTotals(p, rows, end, logit_end);
}

}  // namespace kernels

void PrepareInputsCuda(OpContext& context, const PrepareInputsArgs& a) {
  using namespace kernels;
  const Plan plan = {.row_slot = Data<int32_t>(a.row_slot),
                     .row_capacity = Data<int32_t>(a.row_capacity),
                     .plan_tokens = Data<int32_t>(a.plan_tokens),
                     .plan_begin = Data<int32_t>(a.plan_begin),
                     .plan_samples = Data<int32_t>(a.plan_samples),
                     .live_rows = Data<int32_t>(a.live_rows),
                     .last_token = Data<int32_t>(a.slots.last_token),
                     .length = Data<int32_t>(a.slots.length),
                     .final_length = Data<int32_t>(a.slots.final_length),
                     .ended = Data<int32_t>(a.slots.ended),
                     .num_drafts = Data<int32_t>(a.slots.num_drafts),
                     .drafts = SlicesOf<const int32_t>(a.slots.drafts),
                     .tokens = a.ids.dim(0),
                     .slots = a.slots.length.dim(0),
                     .logits = a.logit_index.dim(0),
                     .passes = a.pass_live.dim(0),
                     .expanded_tokens = a.expanded_tokens,
                     .pass_vectors = a.pass_vectors,
                     .ids = Data<int32_t>(a.ids),
                     .positions = Data<int32_t>(a.positions),
                     .token_slot = Data<int32_t>(a.token_slot),
                     .live_tokens = Data<int32_t>(a.live_tokens),
                     .absorbed_live = Data<int32_t>(a.absorbed_live),
                     .row_begin = Data<int32_t>(a.row_begin),
                     .row_count = Data<int32_t>(a.row_count),
                     .logit_begin = Data<int32_t>(a.logit_begin),
                     .logit_index = Data<int32_t>(a.logit_index),
                     .logit_ordinal = Data<int32_t>(a.logit_ordinal),
                     .pass_live = Data<int32_t>(a.pass_live)};
  // Without rows, one block still writes the counts.
  const auto rows = static_cast<unsigned>(std::max<int64_t>(a.row_slot.dim(0), 1));
  LaunchOverlapped(PrepareInputs, rows, kInputThreads, 0, Cuda(context).get(), plan);
  Cuda(context).CheckLaunch("prepare_inputs", a.ids);
}

}  // namespace fathom
