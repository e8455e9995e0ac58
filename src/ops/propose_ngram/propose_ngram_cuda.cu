// Drafts from a slot's own text, on CUDA.
//   formula:       as drafts.h says
//   data mapping:  a block per row; a thread looks at every kThreads'th place where a match may end
//   bytes, FLOPs:  4 bytes a position of the context; a comparison each, more where tokens
//                  are alike
//   accumulator:   none; of matches the greatest (length, end) counts, whoever found it
//   expected time: 128 rows of 8192: 4 MB, 4 us; not measured
#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"

namespace fathom {
namespace kernels {

constexpr int kProposeThreads = 512;

struct ProposeParams {
  const int32_t *row_slot, *row_begin, *logit_begin, *sampled, *row_count, *live_rows;
  const int32_t *length, *ended;
  int64_t rows, tokens, samples, slots, most_drafts, most_text;
  NgramLookup lookup;
  int32_t* num_drafts;
  Slices<int32_t> drafts, history;
};

__global__ void __launch_bounds__(kProposeThreads) ProposeNgram(ProposeParams p) {
  __shared__ int32_t last[NgramLookup::kMost];  // tokens of the text, the last one first
  __shared__ unsigned long long best;           // length and end of the best match; 0: none
  AfterPriorKernels();
  const int64_t r = blockIdx.x;
  if (r >= *p.live_rows) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t slot = p.row_slot[r], begin = p.row_begin[r], end = p.row_begin[r + 1];
  const int32_t logits = p.logit_begin[r], vectors = p.logit_begin[r + 1] - logits;
  DEVICE_CHECK(slot >= 0 && slot < p.slots, "propose_ngram: slot", slot);
  DEVICE_CHECK(begin <= end && end <= p.tokens, "propose_ngram: end of row", end);
  DEVICE_CHECK(logits + vectors <= p.samples, "propose_ngram: sample", logits + vectors);
  if (vectors == 0 || p.ended[slot] != 0) {
    if (thread == 0) p.num_drafts[slot] = 0;
    return;
  }
  const int32_t drawn = p.row_count[r] - (end - begin - vectors), size = p.length[slot] + 1;
  DEVICE_CHECK(drawn >= 1 && drawn <= vectors, "propose_ngram: drawn", drawn);
  DEVICE_CHECK(size <= p.most_text, "propose_ngram: text", size);
  int32_t* text = p.history[slot];
  if (thread < drawn) text[size - drawn + thread] = p.sampled[logits + thread];
  if (thread == 0) best = 0;
  __syncthreads();
  const int32_t most = min(p.lookup.most, size);
  if (thread < most) last[thread] = text[size - 1 - thread];
  __syncthreads();
  unsigned long long mine = 0;
  for (int32_t at = thread + 1; at < size; at += kProposeThreads) {
    int32_t alike = 0;
    while (alike < min(at, most) && text[at - 1 - alike] == last[alike]) ++alike;
    if (alike < p.lookup.least) continue;
    const unsigned long long match =
        static_cast<unsigned long long>(alike) << 32 | static_cast<uint32_t>(at);
    mine = max(mine, match);
  }
  if (mine != 0) atomicMax(&best, mine);
  __syncthreads();
  const auto found = static_cast<int32_t>(best & 0xffffffff);
  const auto count =
      found == 0 ? 0 : static_cast<int32_t>(min(p.most_drafts, static_cast<int64_t>(size - found)));
  if (thread == 0) p.num_drafts[slot] = count;
  if (thread < count) p.drafts[slot][thread] = text[found + thread];
}

}  // namespace kernels

void ProposeNgramCuda(OpContext& context, const ProposeNgramArgs& a) {
  if (a.row_slot.dim(0) == 0) return;
  using namespace kernels;
  const ProposeParams params = {.row_slot = Data<int32_t>(a.row_slot),
                                .row_begin = Data<int32_t>(a.row_begin),
                                .logit_begin = Data<int32_t>(a.logit_begin),
                                .sampled = Data<int32_t>(a.sampled),
                                .row_count = Data<int32_t>(a.row_count),
                                .live_rows = Data<int32_t>(a.live_rows),
                                .length = Data<int32_t>(a.slots.length),
                                .ended = Data<int32_t>(a.slots.ended),
                                .rows = a.row_slot.dim(0),
                                .tokens = a.positions.dim(0),
                                .samples = a.sampled.dim(0),
                                .slots = a.slots.drafts.dim(0),
                                .most_drafts = a.slots.drafts.dim(1),
                                .most_text = a.slots.history.dim(1),
                                .lookup = a.lookup,
                                .num_drafts = Data<int32_t>(a.slots.num_drafts),
                                .drafts = SlicesOf<int32_t>(a.slots.drafts),
                                .history = SlicesOf<int32_t>(a.slots.history)};
  CHECK(params.most_drafts < kProposeThreads, "propose_ngram: {} drafts", params.most_drafts);
  LaunchOverlapped(ProposeNgram, static_cast<unsigned>(params.rows), kProposeThreads, 0,
                   Cuda(context).get(), params);
  Cuda(context).CheckLaunch("propose_ngram", a.row_slot);
}

}  // namespace fathom
