// FP8 products of few tokens: x to codes, by all warps but the one that loads.
#pragma once

#include "products/cuda/quantize_vector.cuh"
#include "products/hopper/fp8_few_tokens_load.cuh"

namespace fathom {
namespace fp8_few_tokens {

// Codes where they are seldom computed.
__device__ __noinline__ uint2 CodesOfAny(const Vector x, float scale) {
  return Codes(x, scale);
}

// The token whose `vectors` have number i. Cheaper than to divide.
template <int kPieces>
__device__ __forceinline__ int32_t TokenOf(int32_t i, int32_t vectors) {
  int32_t token = 0;
#pragma unroll
  for (int t = 1; t < MostTokens(kPieces); ++t) token += i >= t * vectors;
  return token;
}

// Codes and scales of the block's tokens, in the order in which wgmma reads them. All threads.
template <class X, int kPieces, bool kExperts>
class Quantizer {
 public:
  __device__ Quantizer(const Memory& memory, const Args& a, const Fp8Runs& runs, int32_t tokens)
      : memory_(memory),
        a_(a),
        vectors_(runs.count * kRunLanes),
        total_(tokens * vectors_),
        first_channel_(runs.first * kRun) {}

  __device__ void Run() {
    for (int32_t first = 0; first < total_; first += kLoaded * kQuantizers) {
      Vector x[kLoaded];
#pragma unroll
      for (int j = 0; j < kLoaded; ++j) {
        if (first + j / kTogether * kTogether * kQuantizers >= total_) break;
        const Place place(*this, first + j * kQuantizers);
        const bool inside = place.there && first_channel_ + place.vector * kVector < a_.channels;
        x[j] = inside ? ReadVector(XOf(place.token) + place.vector * kVector) : Vector{};
      }
#pragma unroll
      for (int j = 0; j < kLoaded; j += kTogether) {
        if (first + j * kQuantizers >= total_) break;
        Store(x + j, first + j * kQuantizers);
      }
    }
  }

 private:
  // Vectors that a thread loads together, and whose codes it computes together, so that the
  // instructions of one fill the gaps of the other: as many as registers hold.
  static constexpr bool kManyPairs = kExperts && kPieces == kTokens;
  static constexpr int kLoaded = kExperts && !kManyPairs ? 2 : 4, kTogether = kManyPairs ? 1 : 2;

  // Of this thread, of 32 lanes' from `first` on.
  struct Place {
    __device__ __forceinline__ Place(const Quantizer& q, int32_t first) {
      const auto i = static_cast<int32_t>(first + threadIdx.x);
      token = TokenOf<kPieces>(i, q.vectors_);
      vector = i - token * q.vectors_;
      there = i < q.total_;
    }
    int32_t token, vector;
    bool there;
  };

  __device__ __forceinline__ void Store(const Vector* x, int32_t first) {
    float scale[kTogether], greatest = 0;
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      scale[j] = ScaleOf(x[j], a_.ue8m0);
      greatest = LargerMagnitude(greatest, scale[j]);
    }
    uint2 codes[kTogether];
    if (IsFinite(greatest)) {
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        codes[j] = CodesFinite(x[j], scale[j]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kTogether; ++j) codes[j] = CodesOfAny(x[j], scale[j]);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const Place place(*this, first + j * kQuantizers);
      if (!place.there) continue;
      const int32_t run = place.vector / kRunLanes, chunk = place.vector % kRunLanes / 2;
      *reinterpret_cast<uint2*>(memory_.x + PlaceOfX<kPieces>(run, place.token, chunk) +
                                place.vector % 2 * 8) = codes[j];
      if (place.vector % kRunLanes == 0) {
        memory_.x_scales[run * kTokens + place.token] = scale[j];
      }
    }
  }
  __device__ __forceinline__ const X* XOf(int32_t token) const {
    const int32_t of_x =
        kExperts ? memory_.shared->pairs.pair[token] * a_.token_share >> kTokenShareBits : token;
    return static_cast<const X*>(a_.x) + of_x * a_.x_stride + first_channel_;
  }

  const Memory& memory_;
  const Args& a_;
  const int32_t vectors_, total_, first_channel_;  // of a token; of all; of the block
};

}  // namespace fp8_few_tokens
}  // namespace fathom
