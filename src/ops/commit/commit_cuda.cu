// Advancing slots past a step, on CUDA.
//   formula:       as ops.h says
//   data mapping:  a thread per row; a slot has one row in a step
//   bytes, FLOPs:  some 40 bytes a row; no arithmetic
//   accumulator:   none
//   expected time: one launch (2 us); not measured
#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"

namespace fathom {
namespace kernels {

struct CommitParams {
  const int32_t *row_slot, *row_begin, *positions, *sampled_index, *sampled_tokens, *live_rows;
  int64_t rows, tokens, samples, slots, vocab;
  int32_t *last_token, *length, *generated, *counts;
};

__global__ void Commit(CommitParams p) {
  AfterPriorKernels();
  const int64_t r = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (r >= p.rows || r >= *p.live_rows) return;
  const int32_t slot = p.row_slot[r], end = p.row_begin[r + 1];
  DEVICE_CHECK(slot >= 0 && slot < p.slots, "commit: slot", slot);
  DEVICE_CHECK(p.row_begin[r] < end && end <= p.tokens, "commit: end of row", end);
  p.length[slot] = p.positions[end - 1] + 1;
  const int32_t index = p.sampled_index[r];
  if (index < 0) return;
  DEVICE_CHECK(index < p.samples, "commit: sample", index);
  const int32_t token = p.sampled_tokens[index];
  if (token < 0) return;
  DEVICE_CHECK(token < p.vocab, "commit: token", token);
  p.last_token[slot] = token;
  ++p.generated[slot];
  ++p.counts[slot * p.vocab + token];
}

}  // namespace kernels

void CommitCuda(OpContext& context, const CommitArgs& a) {
  if (a.row_slot.dim(0) == 0) return;
  using namespace kernels;
  const CommitParams params = {.row_slot = Data<int32_t>(a.row_slot),
                               .row_begin = Data<int32_t>(a.row_begin),
                               .positions = Data<int32_t>(a.positions),
                               .sampled_index = Data<int32_t>(a.sampled_index),
                               .sampled_tokens = Data<int32_t>(a.sampled_tokens),
                               .live_rows = Data<int32_t>(a.live_rows),
                               .rows = a.row_slot.dim(0),
                               .tokens = a.positions.dim(0),
                               .samples = a.sampled_tokens.dim(0),
                               .slots = a.slots.counts.dim(0),
                               .vocab = a.slots.counts.dim(1),
                               .last_token = Data<int32_t>(a.slots.last_token),
                               .length = Data<int32_t>(a.slots.length),
                               .generated = Data<int32_t>(a.slots.generated),
                               .counts = Data<int32_t>(a.slots.counts)};
  LaunchOverlapped(Commit, Blocks(params.rows, 128), 128, 0, Cuda(context).get(), params);
  Cuda(context).CheckLaunch("commit", a.row_slot);
}

}  // namespace fathom
