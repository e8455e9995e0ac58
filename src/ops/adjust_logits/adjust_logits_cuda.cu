// Bias, penalties and bans on CUDA.
//   formula:       as ops.h says for AdjustLogitsArgs
//   data mapping:  a block of 1024 threads per logit vector: biases first, then a pass over the
//                  vocabulary if the request asks for penalties, then bans, then another pass if
//                  it has a mask
//   bytes, FLOPs:  8 bytes a bias; 13 bytes a token of the vocabulary where penalised; the drafts
//                  before a vector are compared with each token, from L1; at most 4 bytes and a bit
//                  a token where masked
//   accumulator:   none
//   expected time: without penalties one launch (3 us), else 129k x 13 bytes a vector; not measured
#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"

namespace fathom {
namespace kernels {

constexpr int kMaxBiases = 1024;

struct Adjustment {
  Slices<float> logits;
  int64_t vocab, slots, tokens, most_drafts;
  const int32_t *index, *ordinal, *token_slot, *live;
  Slices<const int32_t> bias_ids, counts, stop_tokens, drafts, mask;
  Slices<const float> bias_values;
  Slices<const uint8_t> in_prompt;
  int biases, stops;
  const float *presence, *frequency, *repetition;
  const int32_t *generated, *min_tokens, *masked;
};

// Each id once, with all its values in order.
__device__ inline void AddBiases(const Adjustment& a, float* logits, int32_t slot) {
  __shared__ int32_t ids[kMaxBiases];
  for (int i = threadIdx.x; i < a.biases; i += blockDim.x) ids[i] = a.bias_ids[slot][i];
  __syncthreads();
  for (int i = threadIdx.x; i < a.biases; i += blockDim.x) {
    const int32_t id = ids[i];
    if (id < 0) continue;
    DEVICE_CHECK(id < a.vocab, "adjust_logits: token", id);
    bool first = true;
    for (int j = 0; j < i; ++j) first = first && ids[j] != id;
    if (!first) continue;
    float logit = logits[id];
    for (int j = i; j < a.biases; ++j) {
      if (ids[j] == id) logit += a.bias_values[slot][j];
    }
    logits[id] = logit;
  }
}

__device__ inline void Penalise(const Adjustment& a, float* logits, int32_t slot,
                                int32_t drafts_before) {
  const float repetition = a.repetition[slot], frequency = a.frequency[slot];
  const float presence = a.presence[slot];
  if (repetition == 1 && frequency == 0 && presence == 0) return;
  const int32_t* drafts = a.drafts[slot];
  for (int64_t v = threadIdx.x; v < a.vocab; v += blockDim.x) {
    int32_t count = a.counts[slot][v];
    for (int i = 0; i < drafts_before; ++i) count += drafts[i] == v;
    float logit = logits[v];
    if (count > 0 || a.in_prompt[slot][v] != 0) {
      logit = logit > 0 ? __fdiv_rn(logit, repetition) : logit * repetition;
    }
    if (count > 0) {
      // Rounded step by step, as every table does.
      logit = __fsub_rn(logit, __fmul_rn(frequency, static_cast<float>(count)));
      logit = __fsub_rn(logit, presence);
    }
    logits[v] = logit;
  }
}

__device__ inline void BanStopTokens(const Adjustment& a, float* logits, int32_t slot,
                                     int32_t drafts_before) {
  if (a.generated[slot] + drafts_before >= a.min_tokens[slot]) return;
  for (int i = threadIdx.x; i < a.stops; i += blockDim.x) {
    const int32_t stop = a.stop_tokens[slot][i];
    DEVICE_CHECK(stop < a.vocab, "adjust_logits: stop token", stop);
    if (stop >= 0) logits[stop] = -INFINITY;
  }
}

// May meet the ban at a token: both write the same.
__device__ inline void Mask(const Adjustment& a, float* logits, int32_t slot,
                            int32_t drafts_before) {
  if (a.masked[slot] == 0) return;
  const int32_t* words = a.mask[slot] + drafts_before * ((a.vocab + 31) / 32);
  for (int64_t v = threadIdx.x; v < a.vocab; v += blockDim.x) {
    const auto word = static_cast<uint32_t>(words[v / 32]);
    if ((word >> (v % 32) & 1) == 0) logits[v] = -INFINITY;
  }
}

__global__ void AdjustLogits(Adjustment a) {
  AfterPriorKernels();
  const int64_t vector = blockIdx.x;
  if (vector >= *a.live) return;
  const int32_t token = a.index[vector];
  DEVICE_CHECK(token >= 0 && token < a.tokens, "adjust_logits: token", token);
  const int32_t slot = a.token_slot[token];
  DEVICE_CHECK(slot >= 0 && slot < a.slots, "adjust_logits: slot", slot);
  const int32_t ordinal = a.ordinal[vector];
  DEVICE_CHECK(ordinal >= 0 && ordinal <= a.most_drafts, "adjust_logits: ordinal", ordinal);
  float* logits = a.logits[vector];
  AddBiases(a, logits, slot);
  __syncthreads();
  Penalise(a, logits, slot, ordinal);
  __syncthreads();
  BanStopTokens(a, logits, slot, ordinal);
  Mask(a, logits, slot, ordinal);
}

}  // namespace kernels

void AdjustLogitsCuda(OpContext& context, const AdjustLogitsArgs& a) {
  if (a.logits.elements() == 0) return;
  using namespace kernels;
  const SlotState& s = a.slots;
  CHECK(s.bias_ids.dim(1) <= kMaxBiases, "adjust_logits: {} biases", s.bias_ids.dim(1));
  const Adjustment adjustment = {.logits = SlicesOf<float>(a.logits),
                                 .vocab = a.logits.dim(1),
                                 .slots = s.counts.dim(0),
                                 .tokens = a.token_slot.dim(0),
                                 .most_drafts = s.drafts.dim(1),
                                 .index = Data<int32_t>(a.index),
                                 .ordinal = Data<int32_t>(a.ordinal),
                                 .token_slot = Data<int32_t>(a.token_slot),
                                 .live = Data<int32_t>(a.live),
                                 .bias_ids = SlicesOf<const int32_t>(s.bias_ids),
                                 .counts = SlicesOf<const int32_t>(s.counts),
                                 .stop_tokens = SlicesOf<const int32_t>(s.stop_tokens),
                                 .drafts = SlicesOf<const int32_t>(s.drafts),
                                 .mask = SlicesOf<const int32_t>(s.mask),
                                 .bias_values = SlicesOf<const float>(s.bias_values),
                                 .in_prompt = SlicesOf<const uint8_t>(s.in_prompt),
                                 .biases = static_cast<int>(s.bias_ids.dim(1)),
                                 .stops = static_cast<int>(s.stop_tokens.dim(1)),
                                 .presence = Data<float>(s.presence),
                                 .frequency = Data<float>(s.frequency),
                                 .repetition = Data<float>(s.repetition),
                                 .generated = Data<int32_t>(s.generated),
                                 .min_tokens = Data<int32_t>(s.min_tokens),
                                 .masked = Data<int32_t>(s.masked)};
  LaunchOverlapped(AdjustLogits, static_cast<unsigned>(a.logits.dim(0)), 1024, 0,
                   Cuda(context).get(), adjustment);
  Cuda(context).CheckLaunch("adjust_logits", a.logits);
}

}  // namespace fathom
