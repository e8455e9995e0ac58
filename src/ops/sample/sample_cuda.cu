// Sampling on CUDA, without sorting.
//   formula:       as ops.h says for SampleArgs
//   data mapping:  a block of 1024 threads per row. Tokens are ordered by a 64-bit key (falling
//                  logit, then rising id); a cut or a draw is the first key at which a sum of
//                  weights in that order reaches a target, found digit by digit (8 bits) with
//                  histograms
//   bytes, FLOPs:  up to 8 passes over the row per cut, from L2; an exponential in double per token
//                  that still qualifies
//   accumulator:   probabilities relative to the likeliest token as integers of 2^-44, so that sums
//                  do not depend on their order
//   expected time: 129k tokens, a draw without cuts: some 100 us a row and multiprocessor; not
//                  measured
#include "ops/cuda_kernels.cuh"
#include "ops/sample/uniform.h"

namespace fathom {
namespace kernels {

constexpr int kThreads = 1024, kDigit = 256;

struct Sampling {
  Rows<const float> logits;
  int64_t vocab, slots;
  const int32_t *row_slot, *position, *live;
  const float *temperature, *top_p, *min_p;
  const int32_t *top_k, *seed;
  int32_t *tokens, *ok;
};

// Greater for a greater logit, then for a lower id. -0 equals 0.
__device__ inline uint64_t KeyOf(float logit, int64_t id) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
__device__ inline int32_t IdOf(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

// A row and the tokens of it that are left: keys >= least, and weights of at least least_weight.
struct Row {
  const float* logits;
  int64_t vocab;
  double max, temperature;
  uint64_t least;
  double min_p;

  // The token's share relative to the likeliest's, in units of 2^-44.
  __device__ uint64_t Weight(float logit) const {
    const double p = exp((logit - max) / temperature);
    return p < min_p ? 0 : static_cast<uint64_t>(__double2ll_rn(p * 0x1p44));
  }
};

struct Shared {
  unsigned long long bins[kDigit];
  unsigned long long before;
  int digit;
};

// All of a block's threads get the sum of `weight(logit)` over keys >= row.least.
template <class Weight>
__device__ uint64_t Total(const Row& row, Shared& s, const Weight& weight) {
  if (threadIdx.x == 0) s.before = 0;
  __syncthreads();
  unsigned long long sum = 0;
  for (int64_t v = threadIdx.x; v < row.vocab; v += kThreads) {
    const float logit = row.logits[v];
    if (KeyOf(logit, v) >= row.least) sum += weight(logit);
  }
  atomicAdd(&s.before, sum);
  __syncthreads();
  const uint64_t total = s.before;
  __syncthreads();
  return total;
}

// The key at which the sum of weights, in order of falling key from the greatest, first reaches
// `target`. REQUIRES: 1 <= target <= Total.
template <class Weight>
__device__ uint64_t KeyAt(const Row& row, uint64_t target, Shared& s, const Weight& weight) {
  uint64_t prefix = 0, mask = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < kDigit; i += kThreads) s.bins[i] = 0;
    __syncthreads();
    for (int64_t v = threadIdx.x; v < row.vocab; v += kThreads) {
      const float logit = row.logits[v];
      const uint64_t key = KeyOf(logit, v);
      if (key < row.least || (key & mask) != prefix) continue;
      atomicAdd(&s.bins[key >> shift & (kDigit - 1)],
                static_cast<unsigned long long>(weight(logit)));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned long long sum = 0;
      int digit = kDigit - 1;
      for (; digit > 0 && sum + s.bins[digit] < target; --digit) sum += s.bins[digit];
      s.digit = digit;
      s.before = sum;
    }
    __syncthreads();
    prefix |= static_cast<uint64_t>(s.digit) << shift;
    mask |= static_cast<uint64_t>(kDigit - 1) << shift;
    target -= s.before;
    __syncthreads();
  }
  return prefix;
}

// Whether every logit is a number or -inf, and one is finite; the greatest key.
__device__ inline bool Sampleable(const float* logits, int64_t vocab, Shared& s, uint64_t& best) {
  if (threadIdx.x == 0) s.before = 0;
  __syncthreads();
  bool valid = true;
  float greatest = -INFINITY;
  int64_t id = vocab;
  const auto look = [&](float x, int64_t v) {  // v rises
    valid = valid && x < INFINITY;
    if (x > greatest) greatest = x, id = v;
  };
  const bool vectors = reinterpret_cast<uintptr_t>(logits) % 16 == 0;
  const int64_t whole = vectors ? vocab / 4 * 4 : 0;
#pragma unroll 4
  for (int64_t v = threadIdx.x * 4; v < whole; v += kThreads * 4) {
    const float4 four = *reinterpret_cast<const float4*>(logits + v);
    look(four.x, v), look(four.y, v + 1), look(four.z, v + 2), look(four.w, v + 3);
  }
  for (int64_t v = whole + threadIdx.x; v < vocab; v += kThreads) look(logits[v], v);
  const bool finite = id < vocab;
  if (finite) atomicMax(&s.before, static_cast<unsigned long long>(KeyOf(greatest, id)));
  const bool all = __syncthreads_and(valid), some = __syncthreads_or(finite);
  best = s.before;
  __syncthreads();
  return all && some;
}

__device__ inline uint64_t Clamp(double target, uint64_t total) {
  if (!(target >= 1)) return 1;
  const auto whole = static_cast<uint64_t>(target);
  return whole < total ? whole : total;
}

__device__ inline int32_t Draw(const Sampling& a, int32_t slot, int32_t position, Row row,
                               Shared& s) {
  const auto one = [](float) { return uint64_t{1}; };
  const auto weight = [&](float logit) { return row.Weight(logit); };
  const int32_t top_k = a.top_k[slot];
  if (top_k > 0 && top_k < row.vocab) row.least = KeyAt(row, static_cast<uint64_t>(top_k), s, one);
  const double top_p = a.top_p[slot];
  uint64_t total = Total(row, s, weight);
  if (top_p < 1) {
    row.least = KeyAt(row, Clamp(ceil(top_p * static_cast<double>(total)), total), s, weight);
  }
  row.min_p = a.min_p[slot];
  if (top_p < 1 || row.min_p > 0) total = Total(row, s, weight);
  const double uniform = SampleUniform(static_cast<uint32_t>(a.seed[2 * slot]),
                                       static_cast<uint32_t>(a.seed[2 * slot + 1]), position);
  const double target = floor(uniform * static_cast<double>(total)) + 1;
  return IdOf(KeyAt(row, Clamp(target, total), s, weight));
}

__global__ void __launch_bounds__(kThreads) Sample(Sampling a) {
  AfterPriorKernels();
  __shared__ Shared s;
  const int64_t r = blockIdx.x;
  if (r >= *a.live) return;
  const int32_t slot = a.row_slot[r];
  DEVICE_CHECK(slot >= 0 && slot < a.slots, "sample: slot", slot);
  const float* logits = a.logits[r];
  uint64_t best = 0;
  const bool ok = Sampleable(logits, a.vocab, s, best);
  int32_t token = -1;
  if (ok) {
    token = IdOf(best);
    const float temperature = a.temperature[slot];
    if (temperature != 0) {
      token = Draw(a, slot, a.position[r], {logits, a.vocab, logits[token], temperature, 0, 0}, s);
    }
  }
  if (threadIdx.x == 0) {
    a.ok[r] = ok ? 1 : 0;
    a.tokens[r] = token;
  }
}

}  // namespace kernels

void SampleCuda(OpContext& context, const SampleArgs& a) {
  if (a.logits.elements() == 0) return;
  using namespace kernels;
  const Sampling sampling = {.logits = RowsOf<const float>(a.logits),
                             .vocab = a.logits.dim(1),
                             .slots = a.slots.temperature.dim(0),
                             .row_slot = Data<int32_t>(a.row_slot),
                             .position = Data<int32_t>(a.position),
                             .live = Data<int32_t>(a.live),
                             .temperature = Data<float>(a.slots.temperature),
                             .top_p = Data<float>(a.slots.top_p),
                             .min_p = Data<float>(a.slots.min_p),
                             .top_k = Data<int32_t>(a.slots.top_k),
                             .seed = Data<int32_t>(a.slots.seed),
                             .tokens = Data<int32_t>(a.tokens),
                             .ok = Data<int32_t>(a.ok)};
  LaunchOverlapped(Sample, static_cast<unsigned>(a.logits.dim(0)), kThreads, 0, Cuda(context).get(),
                   sampling);
  Cuda(context).CheckLaunch("sample", a.logits);
}

}  // namespace fathom
