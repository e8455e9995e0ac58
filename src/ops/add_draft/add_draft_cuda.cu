// A draft more for each slot, on CUDA.
//   formula:       as drafts.h says
//   data mapping:  a thread per row
//   bytes, FLOPs:  some 30 bytes a row; no arithmetic
//   accumulator:   none
//   expected time: one launch (2 us); not measured
#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"

namespace fathom {
namespace kernels {

constexpr int kAddDraftThreads = 128;

struct AddDraftParams {
  const int32_t *draft_slot, *likeliest, *live, *length, *final_length;
  Slices<int32_t> drafts;
  int64_t rows, slots;
  int32_t behind;
  int32_t *num_drafts, *positions;
};

__global__ void AddDraft(AddDraftParams p) {
  AfterPriorKernels();
  const int64_t r = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (r >= p.rows || r >= *p.live) return;
  const int32_t slot = p.draft_slot[r];
  DEVICE_CHECK(slot >= 0 && slot < p.slots, "add_draft: slot", slot);
  p.drafts[slot][p.behind] = p.likeliest[r];
  p.num_drafts[slot] = p.behind + 1;
  p.positions[r] = min(p.length[slot] + p.behind, p.final_length[slot] - 2);
}

}  // namespace kernels

void AddDraftCuda(OpContext& context, const AddDraftArgs& a) {
  if (a.draft_slot.dim(0) == 0) return;
  using namespace kernels;
  const AddDraftParams params = {.draft_slot = Data<int32_t>(a.draft_slot),
                                 .likeliest = Data<int32_t>(a.likeliest),
                                 .live = Data<int32_t>(a.live),
                                 .length = Data<int32_t>(a.slots.length),
                                 .final_length = Data<int32_t>(a.slots.final_length),
                                 .drafts = SlicesOf<int32_t>(a.slots.drafts),
                                 .rows = a.draft_slot.dim(0),
                                 .slots = a.slots.drafts.dim(0),
                                 .behind = a.drafts,
                                 .num_drafts = Data<int32_t>(a.slots.num_drafts),
                                 .positions = Data<int32_t>(a.positions)};
  LaunchOverlapped(AddDraft, Blocks(params.rows, kAddDraftThreads), kAddDraftThreads, 0,
                   Cuda(context).get(), params);
  Cuda(context).CheckLaunch("add_draft", a.draft_slot);
}

}  // namespace fathom
