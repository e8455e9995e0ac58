// What a draft layer goes over, on CUDA.
//   formula:       as drafts.h says
//   data mapping:  a block per row, which counts the rows before it that get drafts
//   bytes, FLOPs:  some 12 bytes a token, 12 for each pair of rows, from L2; no arithmetic
//   accumulator:   none
//   expected time: one launch (2 us) up to some 256 rows; not measured
#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"

namespace fathom {
namespace kernels {

constexpr int kDraftThreads = 128;

struct DraftParams {
  const int32_t *ids, *positions, *row_slot, *row_begin, *logit_begin, *sampled, *row_count;
  const int32_t *live_rows, *ended;
  Slices<const int32_t> history;
  int64_t tokens, samples, slots, text, passes, pass_vectors;
  int32_t *num_drafts, *next_ids, *draft_slot, *draft_index, *live_drafts, *pass_live;

  __device__ bool Drafts(int r) const {
    const int32_t slot = row_slot[r];
    DEVICE_CHECK(slot >= 0 && slot < slots, "prepare_drafts: slot", slot);
    return logit_begin[r + 1] > logit_begin[r] && ended[slot] == 0;
  }
  __device__ int32_t Next(int32_t t, int32_t end, int32_t logit_end, int32_t vectors,
                          int32_t slot) const {
    if (t >= end - vectors) return max(0, sampled[logit_end - (end - t)]);
    if (t + 1 < end) return ids[t + 1];
    const int32_t behind = positions[t] + 1;
    DEVICE_CHECK(behind < text, "prepare_drafts: position", behind);
    return history[slot][behind];
  }
};

__device__ inline void DraftTotals(const DraftParams& p, int32_t drafts) {
  if (threadIdx.x == 0) *p.live_drafts = drafts;
  for (int64_t pass = threadIdx.x; pass < p.passes; pass += kDraftThreads) {
    const int64_t left = drafts - pass * p.pass_vectors;
    p.pass_live[pass] = static_cast<int32_t>(left < 0 ? 0 : min(left, p.pass_vectors));
  }
}

__global__ void PrepareDrafts(DraftParams p) {
  AfterPriorKernels();
  const int r = static_cast<int>(blockIdx.x), rows = *p.live_rows;
  if (rows == 0 && r == 0) DraftTotals(p, 0);
  if (r >= rows) return;
  int32_t before = 0;  // rows before that get drafts
  for (int first = 0; first < r; first += kDraftThreads) {
    const int q = first + static_cast<int>(threadIdx.x);
    before += __syncthreads_count(q < r && p.Drafts(q));
  }
  const bool drafts = p.Drafts(r);
  const int32_t slot = p.row_slot[r], begin = p.row_begin[r], end = p.row_begin[r + 1];
  const int32_t logit_end = p.logit_begin[r + 1], vectors = logit_end - p.logit_begin[r];
  DEVICE_CHECK(begin <= end && end <= p.tokens, "prepare_drafts: end of row", end);
  DEVICE_CHECK(logit_end <= p.samples, "prepare_drafts: sample", logit_end);
  for (int32_t t = begin + static_cast<int32_t>(threadIdx.x); t < end; t += kDraftThreads) {
    p.next_ids[t] = p.Next(t, end, logit_end, vectors, slot);
  }
  if (threadIdx.x == 0) {
    p.num_drafts[slot] = 0;
    if (drafts) {
      p.draft_slot[before] = slot;
      p.draft_index[before] = begin + p.row_count[r] - 1;
    }
  }
  if (r == rows - 1) DraftTotals(p, before + (drafts ? 1 : 0));
}

}  // namespace kernels

void PrepareDraftsCuda(OpContext& context, const PrepareDraftsArgs& a) {
  using namespace kernels;
  const DraftParams params = {.ids = Data<int32_t>(a.ids),
                              .positions = Data<int32_t>(a.positions),
                              .row_slot = Data<int32_t>(a.row_slot),
                              .row_begin = Data<int32_t>(a.row_begin),
                              .logit_begin = Data<int32_t>(a.logit_begin),
                              .sampled = Data<int32_t>(a.sampled),
                              .row_count = Data<int32_t>(a.row_count),
                              .live_rows = Data<int32_t>(a.live_rows),
                              .ended = Data<int32_t>(a.slots.ended),
                              .history = SlicesOf<const int32_t>(a.slots.history),
                              .tokens = a.ids.dim(0),
                              .samples = a.sampled.dim(0),
                              .slots = a.slots.history.dim(0),
                              .text = a.slots.history.dim(1),
                              .passes = a.pass_live.dim(0),
                              .pass_vectors = a.pass_vectors,
                              .num_drafts = Data<int32_t>(a.slots.num_drafts),
                              .next_ids = Data<int32_t>(a.next_ids),
                              .draft_slot = Data<int32_t>(a.draft_slot),
                              .draft_index = Data<int32_t>(a.draft_index),
                              .live_drafts = Data<int32_t>(a.live_drafts),
                              .pass_live = Data<int32_t>(a.pass_live)};
  // Without rows, one block still writes the counts.
  const auto rows = static_cast<unsigned>(std::max<int64_t>(a.row_slot.dim(0), 1));
  LaunchOverlapped(PrepareDrafts, rows, kDraftThreads, 0, Cuda(context).get(), params);
  Cuda(context).CheckLaunch("prepare_drafts", a.ids);
}

}  // namespace fathom
