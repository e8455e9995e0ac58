// Sampling on CUDA, without sorting.
//   formula:       as ops.h says for SampleArgs
//   data mapping:  a block of 1024 threads per logit vector. Tokens are ordered by a 64-bit key
//                  (falling logit, then rising id); a cut or a draw is the first key at which a sum
//                  of weights in that order reaches a target: the sums of 2048 ranges of logits say
//                  in which range it lies, whose tokens are then gathered and compared
//   bytes, FLOPs:  the logit vector once for the greatest, once for the sums, once for each cut or
//                  draw, from L2; some 20 operations a token and pass
//   accumulator:   probabilities relative to the likeliest token as integers of 2^-44, so that sums
//                  do not depend on their order
//   builds on:     bucket selection (Alabi and others, 2012) in place of a sort; draws by Philox
//                  (Salmon and others, 2011)
//   expected time: docs/design/cuda-backend.md
#include "cuda/kernels.cuh"
#include "ops/cuda_ops.h"
#include "ops/sample/uniform.h"

namespace fathom {
namespace kernels {

constexpr int kThreads = 1024, kBins = 2048;
constexpr int kMost = 512;  // tokens that are compared with each other
constexpr float kLeastLog2 =
    -45.f;  // what is less likely by 2^this than the likeliest is not drawn
constexpr float kLog2E = 1.44269504f;

struct Sampling {
  Slices<const float> logits;
  int64_t vocab, slots, batch;
  const int32_t *index, *token_slot, *positions, *live;
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

__device__ inline float LogitOf(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

// visit(logit, id) of each of the logit vector's tokens; those of a thread with rising ids.
template <class Visit>
__device__ inline void ForEach(const float* logits, int64_t vocab, const Visit& visit) {
  const bool vectors = reinterpret_cast<uintptr_t>(logits) % 16 == 0;
  const int64_t whole = vectors ? vocab / 4 * 4 : 0;
#pragma unroll 4
  for (int64_t v = threadIdx.x * 4; v < whole; v += kThreads * 4) {
    const float4 four = *reinterpret_cast<const float4*>(logits + v);
    visit(four.x, v), visit(four.y, v + 1), visit(four.z, v + 2), visit(four.w, v + 3);
  }
  for (int64_t v = whole + threadIdx.x; v < vocab; v += kThreads) visit(logits[v], v);
}

// 2^x for x in [kLeastLog2, 0], in units of 2^-44. The same bits on any GPU.
__device__ inline uint64_t Exp2(float x) {
  const float whole = rintf(x), f = x - whole;  // Taylor's series: 5e-9 off at most
  float p = 1.52527338e-5f;
  for (const float c : {1.54035304e-4f, 1.33335581e-3f, 9.61812911e-3f, 5.55041087e-2f,
                        2.40226507e-1f, 6.93147181e-1f, 1.f}) {
    p = fmaf(p, f, c);
  }
  const uint32_t bits = __float_as_uint(p);
  const int shift = static_cast<int>(bits >> 23) - 127 + static_cast<int>(whole) + 44 - 23;
  const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  return shift >= 0 ? mantissa << shift : mantissa >> -shift;
}

// A logit vector and the tokens of it that are left: keys >= least, and logits >= least_logit.
struct LogitVector {
  const float* logits;
  int64_t vocab;
  float max, per_logit;  // log2(e) / temperature
  float bins_per_logit;
  uint64_t least;
  float least_logit;

  // The token's share relative to the likeliest's, in units of 2^-44.
  __device__ uint64_t Weight(float logit) const {
    const float x = (logit - max) * per_logit;
    return x > kLeastLog2 && logit >= least_logit ? Exp2(x) : 0;
  }
  // Never falls with a falling logit; the last one has all that have no weight.
  __device__ int BinOf(float logit) const {
    return min(__float2int_rz((max - logit) * bins_per_logit), kBins - 1);
  }
  // BinOf(logit) == bin, without the slow conversion. NaN (no logit differs) is of the first.
  __device__ bool IsIn(int bin, float logit) const {
    const float place = (max - logit) * bins_per_logit;
    return !(place < static_cast<float>(bin)) &&
           (bin == kBins - 1 || !(place >= static_cast<float>(bin + 1)));
  }
};

struct Shared {
  unsigned long long bins[kBins], finer[kBins];
  unsigned long long keys[kMost], weights[kMost];
  unsigned long long of_warps[kThreads / kWarp];
  unsigned long long total, before, best, least, greatest, cut, sum;
  int bin, count;
};

// atomicAdd of 64 bits in shared memory is a loop of compare and swap; two of 32 are not.
__device__ inline void AddShared(unsigned long long* to, uint64_t x) {
  auto* const halves = reinterpret_cast<uint32_t*>(to);
  const auto low = static_cast<uint32_t>(x);
  const uint32_t old = atomicAdd(halves, low);
  const uint32_t high = static_cast<uint32_t>(x >> 32) + (old + low < old ? 1 : 0);
  if (high != 0) atomicAdd(halves + 1, high);
}

// bins[i] = the sum of weight(logit) over tokens with bin_of(logit, id) = i; -1: in none.
template <class Weight, class BinOf>
__device__ void AddUp(const LogitVector& vector, unsigned long long* bins, const Weight& weight,
                      const BinOf& bin_of) {
  for (int i = threadIdx.x; i < kBins; i += kThreads) bins[i] = 0;
  __syncthreads();
  ForEach(vector.logits, vector.vocab, [&](float logit, int64_t v) {
    const uint64_t w = weight(logit);
    if (w == 0) return;
    const int bin = bin_of(logit, v);
    if (bin >= 0) AddShared(&bins[bin], w);
  });
  __syncthreads();
}

// s.bin: where the sum of bins first reaches `target` (the last if it does not), s.before: the sum
// before it; s.total.
__device__ inline void FindBin(const unsigned long long* bins, uint64_t target, Shared& s) {
  static_assert(kBins == 2 * kThreads);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const uint64_t first = bins[2 * threadIdx.x], both = first + bins[2 * threadIdx.x + 1];
  uint64_t sum = both;  // of the warp up to this lane
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const uint64_t below = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane >= offset) sum += below;
  }
  if (lane == kWarp - 1) s.of_warps[warp] = sum;
  __syncthreads();
  for (int i = 0; i < warp; ++i) sum += s.of_warps[i];
  const uint64_t before = sum - both;
  if (before < target && target <= sum) {
    const bool second = before + first < target;
    s.bin = static_cast<int>(2 * threadIdx.x) + (second ? 1 : 0);
    s.before = second ? before + first : before;
  }
  if (threadIdx.x == kThreads - 1) {
    s.total = sum;
    if (target > sum) s.bin = kBins - 1, s.before = sum;
  }
  __syncthreads();
}

// Tokens with weight and in(logit, id): s.count; s.keys and s.weights of kMost of them, s.least
// and s.greatest of all their keys.
template <class Weight, class In>
__device__ void Gather(const LogitVector& vector, Shared& s, const Weight& weight, const In& in) {
  if (threadIdx.x == 0) s.count = 0, s.least = UINT64_MAX, s.greatest = 0;
  __syncthreads();
  unsigned long long least = UINT64_MAX, greatest = 0;
  ForEach(vector.logits, vector.vocab, [&](float logit, int64_t v) {
    if (!in(logit, v)) return;
    const uint64_t w = weight(logit), key = KeyOf(logit, v);
    if (w == 0) return;
    least = min(least, static_cast<unsigned long long>(key));
    greatest = max(greatest, static_cast<unsigned long long>(key));
    if (*static_cast<volatile int*>(&s.count) > kMost) return;
    const int place = atomicAdd(&s.count, 1);
    if (place < kMost) s.keys[place] = key, s.weights[place] = w;
  });
  if (greatest > 0) {
    atomicMin(&s.least, least);
    atomicMax(&s.greatest, greatest);
  }
  __syncthreads();
}

// s.cut: the key at which the sum of weights, in order of falling key from the greatest, first
// reaches `target`; s.sum: that sum. REQUIRES: s.bins by BinOf(), of the tokens that are left (and
// others behind them); 1 <= target <= their sum, or the last bin has what they lack.
template <class Weight>
__device__ void Cut(const LogitVector& vector, uint64_t target, Shared& s, const Weight& weight) {
  FindBin(s.bins, target, s);
  uint64_t before = s.before;
  int bin = s.bin;
  Gather(vector, s, weight, [&](float logit, int64_t id) {
    return vector.IsIn(bin, logit) && KeyOf(logit, id) >= vector.least;
  });
  while (s.count > kMost) {  // a range of keys that lies within the bin
    const uint64_t least = s.least, greatest = s.greatest;
    const int shift = max(0, 64 - __clzll(static_cast<long long>(greatest - least)) - 11);
    const auto finer = [&](float logit, int64_t id) {
      const uint64_t key = KeyOf(logit, id);
      return key >= least && key <= greatest ? static_cast<int>((greatest - key) >> shift) : -1;
    };
    AddUp(vector, s.finer, weight, finer);
    FindBin(s.finer, target - before, s);
    before += s.before;
    bin = s.bin;
    Gather(vector, s, weight, [&](float logit, int64_t id) { return finer(logit, id) == bin; });
  }
  if (const int i = threadIdx.x; i < s.count) {
    const uint64_t key = s.keys[i];
    uint64_t sum = before;
    for (int j = 0; j < s.count; ++j) sum += s.keys[j] > key ? s.weights[j] : 0;
    if (sum < target && target <= sum + s.weights[i]) {
      s.cut = key;
      s.sum = sum + s.weights[i];
    }
  }
  __syncthreads();
}

// Whether every logit is a number or -inf, and one is finite; s.best: the greatest key, s.least: a
// key of the least finite logit.
__device__ inline bool Sampleable(const float* logits, int64_t vocab, Shared& s) {
  if (threadIdx.x == 0) s.best = 0, s.least = UINT64_MAX;
  __syncthreads();
  bool valid = true;
  float greatest = -INFINITY, least = INFINITY;
  int64_t id = vocab;
  ForEach(logits, vocab, [&](float x, int64_t v) {
    valid = valid && x < INFINITY;
    if (x > greatest) greatest = x, id = v;
    if (x > -INFINITY) least = fminf(least, x);
  });
  const bool finite = id < vocab;
  if (finite) {
    atomicMax(&s.best, static_cast<unsigned long long>(KeyOf(greatest, id)));
    atomicMin(&s.least, static_cast<unsigned long long>(KeyOf(least, 0)));
  }
  const bool all = __syncthreads_and(valid), some = __syncthreads_or(finite);
  return all && some;
}

__device__ inline uint64_t Clamp(double target, uint64_t total) {
  if (!(target >= 1)) return 1;
  const auto whole = static_cast<uint64_t>(target);
  return whole < total ? whole : total;
}

// Of s.best and s.least.
__device__ inline int32_t Draw(const Sampling& a, int32_t slot, int32_t position, Shared& s,
                               const float* logits) {
  const float temperature = a.temperature[slot], top_p = a.top_p[slot], min_p = a.min_p[slot];
  LogitVector vector = {
      .logits = logits, .vocab = a.vocab, .max = LogitOf(s.best), .least_logit = -INFINITY};
  vector.per_logit = fminf(kLog2E / temperature, 1e30f);
  const float range = fminf(vector.max - LogitOf(s.least), -kLeastLog2 / vector.per_logit);
  vector.bins_per_logit = range > 0 ? kBins / range : 0;
  __syncthreads();
  const auto weight = [&](float logit) { return vector.Weight(logit); };
  const auto bin_of = [&](float logit, int64_t id) {
    return vector.least == 0 || KeyOf(logit, id) >= vector.least ? vector.BinOf(logit) : -1;
  };
  const int32_t top_k = a.top_k[slot];
  if (top_k > 0 && top_k < vector.vocab) {
    const auto one = [](float) { return uint64_t{1}; };
    // Most tokens are in the last bin: it is not counted.
    AddUp(vector, s.bins, one, [&](float logit, int64_t) {
      const int bin = vector.BinOf(logit);
      return bin < kBins - 1 ? bin : -1;
    });
    Cut(vector, static_cast<uint64_t>(top_k), s, one);
    vector.least = s.cut;
  }
  AddUp(vector, s.bins, weight, bin_of);
  FindBin(s.bins, 1, s);
  uint64_t total = s.total;
  if (top_p < 1) {
    Cut(vector, Clamp(ceil(static_cast<double>(top_p) * static_cast<double>(total)), total), s,
        weight);
    vector.least = s.cut;
    total = s.sum;
  }
  if (min_p > 0) {
    vector.least_logit = __double2float_ru(vector.max + double{temperature} * log(double{min_p}));
    AddUp(vector, s.bins, weight, bin_of);
    FindBin(s.bins, 1, s);
    total = s.total;
  }
  const double uniform = SampleUniform(static_cast<uint32_t>(a.seed[2 * slot]),
                                       static_cast<uint32_t>(a.seed[2 * slot + 1]), position);
  Cut(vector, Clamp(floor(uniform * static_cast<double>(total)) + 1, total), s, weight);
  return IdOf(s.cut);
}

__global__ void __launch_bounds__(kThreads) Sample(Sampling a) {
  AfterPriorKernels();
  __shared__ Shared s;
  const int64_t r = blockIdx.x;
  if (r >= *a.live) return;
  const int32_t index = a.index[r];
  DEVICE_CHECK(index >= 0 && index < a.batch, "sample: index", index);
  const int32_t slot = a.token_slot[index];
  DEVICE_CHECK(slot >= 0 && slot < a.slots, "sample: slot", slot);
  const float* logits = a.logits[r];
  const bool ok = Sampleable(logits, a.vocab, s);
  int32_t token = -1;
  if (ok) {
    token =
        a.temperature[slot] == 0 ? IdOf(s.best) : Draw(a, slot, a.positions[index] + 1, s, logits);
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
  const Sampling sampling = {.logits = SlicesOf<const float>(a.logits),
                             .vocab = a.logits.dim(1),
                             .slots = a.slots.temperature.dim(0),
                             .batch = a.positions.dim(0),
                             .index = Data<int32_t>(a.index),
                             .token_slot = Data<int32_t>(a.token_slot),
                             .positions = Data<int32_t>(a.positions),
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
