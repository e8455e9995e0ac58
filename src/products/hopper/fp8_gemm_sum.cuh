// The multiplying half of the FP8 product: a tile's sums over its runs.
#pragma once

#include <type_traits>

#include "cuda/wgmma_fp8.h"
#include "products/hopper/fp8_gemm_tile.cuh"

namespace fathom::fp8_gemm {

// The sum of no chains: it changes nothing, not even a negative zero.
inline constexpr float kNoChain = -0.0f;

// The scale of a weight tile for each run: a lane holds every 32nd, and the next already.
class WeightScales {
 public:
  static constexpr int kHeld = 32;  // runs at a time
  __device__ void Start(const float* scales, int32_t runs) {
    scales_ = scales;
    runs_ = runs;
    next_ = Read(threadIdx.x % kHeld);
  }
  // Goes on to the kHeld runs from `first` on, which come in order.
  __device__ void Turn(int32_t first) {
    current_ = next_;
    next_ = Read(first + kHeld + threadIdx.x % kHeld);
  }
  // Of the run `i` of those held; whole warps.
  __device__ float Of(int32_t i) const { return __shfl_sync(kAllLanes, current_, i); }

 private:
  __device__ float Read(int32_t run) const { return run < runs_ ? __ldg(scales_ + run) : 0.0f; }
  const float* scales_;
  int32_t runs_;
  float current_, next_;
};

// The same for short tiles, whose next scales would be waited for at once: all are held.
class HeldWeightScales {
 public:
  __device__ void Start(const float* scales, int32_t runs) {
#pragma unroll
    for (int i = 0; i < kMostRuns / 32; ++i) {
      const int32_t run = 32 * i + threadIdx.x % 32;
      held_[i] = run < runs ? __ldg(scales + run) : 0.0f;
    }
  }
  // Whole warps, the same run.
  __device__ float Of(int32_t run) const {
    float scale = held_[0];
#pragma unroll
    for (int i = 1; i < kMostRuns / 32; ++i) {
      if (run >= 32 * i) scale = held_[i];
    }
    return __shfl_sync(kAllLanes, scale, run % 32);
  }

 private:
  float held_[kMostRuns / 32];
};

template <class T>
using WeightScalesOf = std::conditional_t<T::kTwoProducts, HeldWeightScales, WeightScales>;

// Where a warpgroup's operands lie in the first stage: the lower halves of descriptors, in which a
// unit is 16 bytes.
struct Operands {
  template <class T>
  __device__ Operands(const Shared<T>& shared, const Place<T>& place)
      : x(Lower(shared.x[0] + place.UnitToken(0) * kRun)),
        weights(Lower(shared.weights[0] + place.UnitChannel(0) * kRun)) {}
  __device__ static uint32_t Lower(const uint8_t* data) {
    return Uniform(static_cast<uint32_t>(WgmmaOperand(SharedAddress(data))));
  }
  // The descriptor `offset` bytes further.
  __device__ static uint64_t At(uint32_t lower, uint32_t offset) {
    return (WgmmaOperand(0) & ~uint64_t{0xffffffff}) | (lower + offset / 16);
  }
  uint32_t x, weights;
};

template <class T>
__device__ __forceinline__ void Multiply(Sums<T>& product, const Operands& operands, uint32_t stage,
                                         int unit) {
  const uint32_t x = operands.x + stage * (T::kM * kRun / 16),
                 weights = operands.weights + stage * (T::kN * kRun / 16);
  WgmmaHold(product);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < kRun / 32; ++k) {
    WgmmaE4M3(product, Operands::At(x, unit / T::kUnitsN * 64 * kRun + 32 * k),
              Operands::At(weights, unit % T::kUnitsN * T::kMmaN * kRun + 32 * k), k > 0);
  }
  WgmmaCommit();
}

// The scales of this thread's two tokens of a unit, times the weights'.
template <class T>
__device__ __forceinline__ float2 ReadScales(const Shared<T>& shared, int stage,
                                             const Place<T>& place, int unit, float weight_scale) {
  const int box = T::kScaleBoxes == 1 ? 0 : place.UnitToken(unit) / 128;
  const float* scales = shared.x_scales[stage][box] + place.Token(unit) - 128 * box + place.shift;
  return {scales[0] * weight_scale, scales[8] * weight_scale};
}

template <class T>
__device__ __forceinline__ void AddScaled(Sums<T>& sum, const Sums<T>& product, float2 scale) {
#pragma unroll
  for (int i = 0; i < T::kMmaN / 2; ++i) {
    sum[i] = fmaf(product[i], i / 2 % 2 == 0 ? scale.x : scale.y, sum[i]);
  }
}

// What SumUnits adds up: one chain's runs, or all chains', whose sums `total` is to have.
struct RunsOfAChain {
  int32_t count;
  template <class Sums>
  __device__ __forceinline__ void Added(int32_t, Sums&) {}
};
template <class T>
struct RunsOfChains {
  __device__ RunsOfChains(const Args& args, Sums<T>& to)
      : count(args.runs),
        chains(args.chains),
        end(Fp8RunsOfChain(count, 0, chains).end()),
        total(to) {}
  __device__ __forceinline__ void Added(int32_t run, Sums<T> (&sums)[T::kUnits]) {
    if (run + 1 != end) return;
    end = Fp8RunsOfChain(count, ++chain, chains).end();
#pragma unroll
    for (int i = 0; i < T::kMmaN / 2; ++i) {
      total[i] = __fadd_rn(total[i], sums[0][i]);
      sums[0][i] = 0;
    }
  }
  const int32_t count, chains;
  int32_t chain = 0, end;
  Sums<T>& total;
};

// The sums of a tile, one product at a time, units in turn: the other warpgroup's products run
// while this one's are scaled. `runs` is told of each of them whose products the sums have.
template <class T, class Each>
__device__ __forceinline__ void SumUnits(Sums<T> (&sums)[T::kUnits], Shared<T>& shared,
                                         RingPosition<T::kStages>& ring, const Place<T>& place,
                                         WeightScalesOf<T> (&weight_scales)[T::kUnitsN],
                                         Each runs) {
  const Operands operands(shared, place);
  using Scales = float2[T::kUnits];
  // Waits for a stage, and reads its scales.
  const auto read = [&](Scales& scales, int32_t i) {
    float weight_scale[T::kUnitsN];
#pragma unroll
    for (int n = 0; n < T::kUnitsN; ++n) weight_scale[n] = weight_scales[n].Of(i);
    shared.full[ring.index].Wait(ring.parity);
#pragma unroll
    for (int unit = 0; unit < T::kUnits; ++unit) {
      scales[unit] = ReadScales(shared, ring.index, place, unit, weight_scale[unit % T::kUnitsN]);
    }
  };
  constexpr int kLast = T::kUnits - 1;
  for (int32_t first = 0; first < runs.count; first += WeightScales::kHeld) {
#pragma unroll
    for (int n = 0; n < T::kUnitsN; ++n) weight_scales[n].Turn(first);
    int32_t left = min(runs.count - first, WeightScales::kHeld);
    Sums<T> product;
    Scales scales, next;
    read(scales, 0);
    for (int32_t i = 1;; ++i) {
      const uint32_t stage = ring.index;
      ring.Advance();
#pragma unroll
      for (int unit = 0; unit < T::kUnits; ++unit) {
        Multiply<T>(product, operands, stage, unit);
        WgmmaWait<0>();
        WgmmaHold(product);
        if (unit < kLast) AddScaled<T>(sums[unit], product, scales[unit]);
      }
      Release<T::kRingBlocks>(shared.empty[stage], place.lane);
      if (--left == 0) break;
      // Before the last product is scaled, not after; but not while it runs, when reading is slow.
      read(next, i);
      AddScaled<T>(sums[kLast], product, scales[kLast]);
      runs.Added(first + i - 1, sums);
#pragma unroll
      for (int unit = 0; unit < T::kUnits; ++unit) scales[unit] = next[unit];
    }
    AddScaled<T>(sums[kLast], product, scales[kLast]);
    runs.Added(min(runs.count, first + WeightScales::kHeld) - 1, sums);
  }
}

// The sums of a tile's chains, one after the other, and of all chains in order.
template <class T>
__device__ __forceinline__ void SumAndFold(Sums<T> (&sums)[T::kUnits], Shared<T>& shared,
                                           RingPosition<T::kStages>& ring, const Place<T>& place,
                                           WeightScalesOf<T> (&weight_scales)[T::kUnitsN],
                                           const Args& args) {
  Sums<T> total;
#pragma unroll
  for (float& number : total) number = kNoChain;
  SumUnits<T>(sums, shared, ring, place, weight_scales, RunsOfChains<T>(args, total));
#pragma unroll
  for (int i = 0; i < T::kMmaN / 2; ++i) sums[0][i] = total[i];
}

// A warpgroup without tokens only says that it has read.
template <class T>
__device__ __forceinline__ void SkipRuns(Shared<T>& shared, RingPosition<T::kStages>& ring,
                                         const Place<T>& place, int32_t runs) {
  for (int32_t run = 0; run < runs; ++run, ring.Advance()) {
    shared.full[ring.index].Wait(ring.parity);
    Release<T::kRingBlocks>(shared.empty[ring.index], place.lane);
  }
}

// The sums of a tile whose next product runs while the last is scaled.
template <class T>
__device__ __forceinline__ void SumOverlapped(Sums<T>& sum, Shared<T>& shared,
                                              RingPosition<T::kStages>& ring, const Place<T>& place,
                                              WeightScalesOf<T>& weight_scales, int32_t runs) {
  RingPosition<T::kStages> next = ring;  // `ring` is the stage whose product is scaled next
  // Scales are read before wgmma keeps the shared memory busy.
  const Operands operands(shared, place);
  const auto begin = [&](Sums<T>& product, float2& scale, int32_t run) {
    const float weight_scale = weight_scales.Of(run);
    shared.full[next.index].Wait(next.parity);
    scale = ReadScales(shared, next.index, place, 0, weight_scale);
    Multiply<T>(product, operands, next.index, 0);
    next.Advance();
  };
  const auto finish = [&](Sums<T>& product, float2 scale) {
    WgmmaHold(product);
    Release<T::kRingBlocks>(shared.empty[ring.index], place.lane);
    ring.Advance();
    AddScaled<T>(sum, product, scale);
  };
  Sums<T> even, odd;
  float2 even_scale, odd_scale;
  begin(even, even_scale, 0);
  int32_t run = 0;
  for (; run + 2 < runs; run += 2) {
    begin(odd, odd_scale, run + 1);
    WgmmaWait<1>();
    finish(even, even_scale);
    begin(even, even_scale, run + 2);
    WgmmaWait<1>();
    finish(odd, odd_scale);
  }
  if (run + 2 == runs) {
    begin(odd, odd_scale, run + 1);
    WgmmaWait<1>();
    finish(even, even_scale);
    WgmmaWait<0>();
    finish(odd, odd_scale);
  } else {
    WgmmaWait<0>();
    finish(even, even_scale);
  }
}

}  // namespace fathom::fp8_gemm
