// A step's inputs from plan and slots, on CUDA.
//   formula:       ids, positions and slots of each row's tokens, as ops.h says
//   data mapping:  a block per row
//   bytes, FLOPs:  some 20 bytes a token; no arithmetic
//   accumulator:   none
//   expected time: one launch (2 us); not measured
#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"

namespace fathom {
namespace kernels {

struct Plan {
  const int32_t *row_slot, *row_begin, *plan_tokens, *plan_position, *live_rows;
  const int32_t *last_token, *length;
  int64_t tokens, slots;
  int32_t *ids, *positions, *token_slot, *live_tokens;
};

__global__ void PrepareInputs(Plan p) {
  AfterPriorKernels();
  const int32_t r = static_cast<int32_t>(blockIdx.x), rows = *p.live_rows;
  if (r == 0 && threadIdx.x == 0) *p.live_tokens = p.row_begin[rows];
  if (r >= rows) return;
  const int32_t slot = p.row_slot[r], begin = p.row_begin[r], end = p.row_begin[r + 1];
  DEVICE_CHECK(slot >= 0 && slot < p.slots, "prepare_inputs: slot", slot);
  DEVICE_CHECK(begin <= end && end <= p.tokens, "prepare_inputs: end of row", end);
  const int32_t planned = p.plan_position[r];
  const int32_t position = planned == -1 ? p.length[slot] : planned;
  for (int32_t t = begin + static_cast<int32_t>(threadIdx.x); t < end;
       t += static_cast<int32_t>(blockDim.x)) {
    const int32_t token = p.plan_tokens[t];
    p.ids[t] = token == -1 ? p.last_token[slot] : token;
    p.positions[t] = position + (t - begin);
    p.token_slot[t] = slot;
  }
}

}  // namespace kernels

void PrepareInputsCuda(OpContext& context, const PrepareInputsArgs& a) {
  using namespace kernels;
  const Plan plan = {.row_slot = Data<int32_t>(a.row_slot),
                     .row_begin = Data<int32_t>(a.row_begin),
                     .plan_tokens = Data<int32_t>(a.plan_tokens),
                     .plan_position = Data<int32_t>(a.plan_position),
                     .live_rows = Data<int32_t>(a.live_rows),
                     .last_token = Data<int32_t>(a.slots.last_token),
                     .length = Data<int32_t>(a.slots.length),
                     .tokens = a.ids.dim(0),
                     .slots = a.slots.length.dim(0),
                     .ids = Data<int32_t>(a.ids),
                     .positions = Data<int32_t>(a.positions),
                     .token_slot = Data<int32_t>(a.token_slot),
                     .live_tokens = Data<int32_t>(a.live_tokens)};
  // Without rows, one block still writes the count.
  const auto rows = static_cast<unsigned>(std::max<int64_t>(a.row_slot.dim(0), 1));
  LaunchOverlapped(PrepareInputs, rows, 128, 0, Cuda(context).get(), plan);
  Cuda(context).CheckLaunch("prepare_inputs", a.ids);
}

}  // namespace fathom
