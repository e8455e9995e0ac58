// Which drafts stand, on CUDA.
//   formula:       as drafts.h says
//   data mapping:  a thread per row
//   bytes, FLOPs:  some 40 bytes a row; no arithmetic
//   accumulator:   none
//   expected time: one launch (2 us); not measured
#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"
#include "ops/synthetic_acceptance.h"

namespace fathom {
namespace kernels {

constexpr int kVerifyThreads = 128;

struct VerifyParams {
  const int32_t *row_slot, *logit_begin, *sampled, *live_rows, *length;
  Slices<const int32_t> drafts;
  int64_t rows, samples, slots, most_drafts;
  int32_t* row_count;
  double synthetic_acceptance;

  __device__ bool Stands(int32_t sample, int32_t slot, int32_t draft) const {
    if (synthetic_acceptance < 0) return sample == drafts[slot][draft];
    return sample >= 0 && StandsByChance(synthetic_acceptance, slot, length[slot] + draft + 1);
  }
};

__global__ void VerifyDrafts(VerifyParams p) {
  AfterPriorKernels();
  const int64_t r = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (r >= p.rows || r >= *p.live_rows) return;
  const int32_t slot = p.row_slot[r], logits = p.logit_begin[r];
  const int32_t vectors = p.logit_begin[r + 1] - logits;
  DEVICE_CHECK(slot >= 0 && slot < p.slots, "verify_drafts: slot", slot);
  DEVICE_CHECK(vectors <= p.most_drafts + 1, "verify_drafts: logit vectors", vectors);
  DEVICE_CHECK(logits + vectors <= p.samples, "verify_drafts: sample", logits + vectors);
  int32_t stand = min(vectors, 1);
  while (stand < vectors && p.Stands(p.sampled[logits + stand - 1], slot, stand - 1)) ++stand;
  p.row_count[r] -= vectors - stand;
}

}  // namespace kernels

void VerifyDraftsCuda(OpContext& context, const VerifyDraftsArgs& a) {
  if (a.row_slot.dim(0) == 0) return;
  using namespace kernels;
  const VerifyParams params = {.row_slot = Data<int32_t>(a.row_slot),
                               .logit_begin = Data<int32_t>(a.logit_begin),
                               .sampled = Data<int32_t>(a.sampled),
                               .live_rows = Data<int32_t>(a.live_rows),
                               .length = Data<int32_t>(a.slots.length),
                               .drafts = SlicesOf<const int32_t>(a.slots.drafts),
                               .rows = a.row_slot.dim(0),
                               .samples = a.sampled.dim(0),
                               .slots = a.slots.drafts.dim(0),
                               .most_drafts = a.slots.drafts.dim(1),
                               .row_count = Data<int32_t>(a.row_count),
                               .synthetic_acceptance = a.synthetic_acceptance};
  LaunchOverlapped(VerifyDrafts, Blocks(params.rows, kVerifyThreads), kVerifyThreads, 0,
                   Cuda(context).get(), params);
  Cuda(context).CheckLaunch("verify_drafts", a.row_slot);
}

}  // namespace fathom
