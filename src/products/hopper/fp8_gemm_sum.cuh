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

// A warpgroup's operands in the first stage.
struct Operands {
  template <class T>
  __device__ Operands(const Shared<T>& shared, const Place<T>& place)
      : x(Of(shared.x[0] + place.UnitToken(0) * kRun)),
        weights(Of(shared.weights[0] + place.UnitChannel(0) * kRun)) {}
  __device__ static uint32_t Of(const uint8_t* data) {
    return Uniform(WgmmaOperand(SharedAddress(data)));
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
    WgmmaE4M3(product, x + (unit / T::kUnitsN * 64 * kRun + 32 * k) / 16,
              weights + (unit % T::kUnitsN * T::kMmaN * kRun + 32 * k) / 16, k > 0);
  }
  WgmmaCommit();
}

// Where this thread's scales of x lie in the first stage.
template <class T>
__device__ __forceinline__ const float* FirstScales(const Shared<T>& shared,
                                                    const Place<T>& place) {
  const int box = T::kScaleBoxes == 1 ? 0 : place.UnitToken(0) / 128;
  return shared.x_scales[0][box] + place.Token(0) - 128 * box + place.shift;
}

// Of this thread's two tokens of a unit, for each part of its channels.
template <class T>
using UnitScales = float2[T::kScaleParts];

// The scales of x in a stage, times the weights'.
template <class T>
__device__ __forceinline__ void ReadScales(UnitScales<T>& scales, const float* first,
                                           uint32_t stage, const Place<T>& place, int unit,
                                           const float (&weights)[T::kScalesN]) {
  const float* x = first + stage * (T::kScaleBoxes * T::kScalePitch) + unit / T::kUnitsN * 64;
  const float low = x[0], high = x[8];
#pragma unroll
  for (int part = 0; part < T::kScaleParts; ++part) {
    const float weight = T::kScaleTiles == 1 ? weights[unit % T::kUnitsN]
                         : part == 0 || (part == 1 && place.middle_in_first) ? weights[0]
                                                                             : weights[1];
    scales[part] = {low * weight, high * weight};
  }
}

template <class T>
__device__ __forceinline__ void AddScaled(Sums<T>& sum, const Sums<T>& product,
                                          const UnitScales<T>& scales) {
#pragma unroll
  for (int i = 0; i < T::kMmaN / 2; ++i) {
    const float2 scale = scales[T::kScaleParts == 1 ? 0 : i / 32];
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
// while this one's are scaled. What comes between a product and the next costs its time in full, so
// all else is done behind a product's last instruction: scales are read, the stage before is given
// back (where a run is one product, its own is, at once), and the next one is asked for. `runs` is
// told of each run whose products the sums have.
template <class T, class Each>
__device__ __forceinline__ void SumUnits(Sums<T> (&sums)[T::kUnits], Shared<T>& shared,
                                         RingPosition<T::kStages>& ring, const Place<T>& place,
                                         WeightScalesOf<T> (&weight_scales)[T::kScalesN],
                                         Each runs) {
  constexpr bool kGivesBackLater = T::kUnits > 1;
  const Operands operands(shared, place);
  const float* const first_scales = FirstScales(shared, place);
  const auto give_back = [&](uint32_t stage) {
    Release<T::kRingBlocks>(shared.empty[stage], place.lane);
  };
  uint32_t read = 0;   // the stage before
  bool there = false;  // whether the run's operands are known to be
  for (int32_t first = 0; first < runs.count; first += WeightScales::kHeld) {
#pragma unroll
    for (WeightScales& scales : weight_scales) scales.Turn(first);
    const int32_t count = min(runs.count - first, WeightScales::kHeld);
    for (int32_t i = 0; i < count; ++i) {
      const uint32_t stage = ring.index;
      if (!there) shared.full[stage].Wait(ring.parity);
      UnitScales<T> scales[T::kUnits];
      Sums<T> product;
#pragma unroll
      for (int unit = 0; unit < T::kUnits; ++unit) {
        Multiply<T>(product, operands, stage, unit);
        if (unit == 0) {
          float weights[T::kScalesN];
#pragma unroll
          for (int n = 0; n < T::kScalesN; ++n) weights[n] = weight_scales[n].Of(i);
#pragma unroll
          for (int of = 0; of < T::kUnits; ++of) {
            ReadScales<T>(scales[of], first_scales, stage, place, of, weights);
          }
          if (kGivesBackLater && (first | i) != 0) give_back(read);
          read = stage;
          ring.Advance();
        }
        if (unit == T::kUnits - 1) there = shared.full[ring.index].Test(ring.parity);
        WgmmaWait<0>();
        WgmmaHold(product);
        if (!kGivesBackLater) give_back(stage);
        AddScaled<T>(sums[unit], product, scales[unit]);
      }
      runs.Added(first + i, sums);
    }
  }
  if (kGivesBackLater) give_back(read);
}

// The sums of a tile's chains, one after the other, and of all chains in order.
template <class T>
__device__ __forceinline__ void SumAndFold(Sums<T> (&sums)[T::kUnits], Shared<T>& shared,
                                           RingPosition<T::kStages>& ring, const Place<T>& place,
                                           WeightScalesOf<T> (&weight_scales)[T::kScalesN],
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
  const float* const first_scales = FirstScales(shared, place);
  const auto begin = [&](Sums<T>& product, UnitScales<T>& scales, int32_t run) {
    const float weights[] = {weight_scales.Of(run)};
    shared.full[next.index].Wait(next.parity);
    ReadScales<T>(scales, first_scales, next.index, place, 0, weights);
    Multiply<T>(product, operands, next.index, 0);
    next.Advance();
  };
  const auto finish = [&](Sums<T>& product, const UnitScales<T>& scales) {
    WgmmaHold(product);
    Release<T::kRingBlocks>(shared.empty[ring.index], place.lane);
    ring.Advance();
    AddScaled<T>(sum, product, scales);
  };
  Sums<T> even, odd;
  UnitScales<T> even_scales, odd_scales;
  begin(even, even_scales, 0);
  int32_t run = 0;
  for (; run + 2 < runs; run += 2) {
    begin(odd, odd_scales, run + 1);
    WgmmaWait<1>();
    finish(even, even_scales);
    begin(even, even_scales, run + 2);
    WgmmaWait<1>();
    finish(odd, odd_scales);
  }
  if (run + 2 == runs) {
    begin(odd, odd_scales, run + 1);
    WgmmaWait<1>();
    finish(even, even_scales);
    WgmmaWait<0>();
    finish(odd, odd_scales);
  } else {
    WgmmaWait<0>();
    finish(even, even_scales);
  }
}

}  // namespace fathom::fp8_gemm
