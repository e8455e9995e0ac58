// What a block does to normalise a token that it has loaded: rms_norm's, and all_reduce_norm's.
#pragma once

#include "cuda/kernels.cuh"
#include "ops/ops.h"
#include "ops/quantized_copy_cuda.h"
#include "products/cuda/quantize_tokens.h"
#include "products/cuda/quantize_vector.cuh"

namespace fathom::kernels {

constexpr int kNormThreads = 256;
constexpr int64_t kMostNormWidth = 4 * kNormThreads * kVector;

// kVector numbers as they lie in memory.
template <class T>
struct alignas(16) Raw {
  T v[kVector];
};

// Those from i on; zeros beyond the width. It only loads, so that those that follow are on their
// way together.
template <bool kAligned, class T>
__device__ __forceinline__ Raw<T> LoadRaw(const T* from, int64_t i, int64_t width) {
  Raw<T> raw = {};
  if constexpr (kAligned) {
    constexpr int kPieces = sizeof(raw) / sizeof(uint4);
    if (i < width) {
#pragma unroll
      for (int c = 0; c < kPieces; ++c) {
        reinterpret_cast<uint4*>(raw.v)[c] = reinterpret_cast<const uint4*>(from + i)[c];
      }
    }
  } else {
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      if (i + c < width) raw.v[c] = from[i + c];
    }
  }
  return raw;
}
template <bool kAligned, class T>
__device__ void StoreVector(T* to, int64_t i, int64_t width, const Vector& x) {
  if constexpr (kAligned) {
    alignas(16) T y[kVector];
#pragma unroll
    for (int c = 0; c < kVector; ++c) Store(y + c, x.v[c]);
#pragma unroll
    for (int c = 0; c < static_cast<int>(sizeof(y) / 16); ++c) {
      reinterpret_cast<uint4*>(to + i)[c] = reinterpret_cast<const uint4*>(y)[c];
    }
  } else {
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      if (i + c < width) Store(to + i + c, x.v[c]);
    }
  }
}

// The codes of kVector numbers as BF16 holds them, from i on. Whole warps.
__device__ __forceinline__ void StoreQuantized(const QuantizedOut& to, int64_t token, int64_t i,
                                               int64_t width, Vector x) {
#pragma unroll
  for (int c = 0; c < kVector; ++c) x.v[c] = __bfloat162float(__float2bfloat16_rn(x.v[c]));
  const float scale = ScaleOf(x, to.scale_ue8m0);
  if (i < width) StoreCodes(to, token, width, i / kVector, Codes(x, scale), scale);
}

// Whether all that the norm reads and writes can be moved sixteen bytes at a time.
inline bool NormsVectors(const RmsNormArgs& a) {
  const auto at_vector = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  bool yes = a.x.dim(1) % kVector == 0 && at_vector(a.weight.data());
  for (const TensorView* view : {&a.x, &a.residual, &a.out}) {
    if (view->absent()) continue;
    yes = yes && view->stride(0) % kVector == 0 && at_vector(view->data());
  }
  return yes;
}

struct Scaling {
  const float* weight;
  float eps;
  int64_t width;
};

// Channel s of a thread's kVector at a time, of at most kSteps.
__device__ __forceinline__ int64_t NormChannel(int s) {
  return (int64_t{threadIdx.x} + s * kNormThreads) * kVector;
}

template <bool kAligned, int kSteps, class T>
__device__ __forceinline__ void LoadSteps(const T* from, int64_t width, Raw<T> (&raw)[kSteps]) {
#pragma unroll
  for (int s = 0; s < kSteps; ++s) raw[s] = LoadRaw<kAligned>(from, NormChannel(s), width);
}

// What a block writes of a token.
template <class R>
struct NormedToken {
  int64_t token;
  R* residual;  // null: none
  BF16* out;
  QuantizedOut quantized;
};

// out = values / rms(values) * weight, and residual = values.
template <bool kAligned, int kSteps, class R>
__device__ __forceinline__ void NormToken(Vector (&values)[kSteps],
                                          const Raw<float> (&weight)[kSteps],
                                          const Scaling& scaling, const NormedToken<R>& to) {
  __shared__ float scratch[kWarp];
  const int64_t width = scaling.width;
  float sum = 0;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int64_t i = NormChannel(s);
    if (to.residual != nullptr && i < width) {
      StoreVector<kAligned>(to.residual, i, width, values[s]);
    }
#pragma unroll
    for (int c = 0; c < kVector; ++c) sum += values[s].v[c] * values[s].v[c];
  }
  sum = BlockReduce(sum, 0.0f, scratch, Plus());
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(width) + scaling.eps);
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int64_t i = NormChannel(s);
    const bool inside = i < width;
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      values[s].v[c] = inside ? values[s].v[c] * (scale * weight[s].v[c]) : 0;
    }
    if (inside) StoreVector<kAligned>(to.out, i, width, values[s]);
    if constexpr (kAligned) {
      if (to.quantized.codes != nullptr)
        StoreQuantized(to.quantized, to.token, i, width, values[s]);
    }
  }
}

// rms_norm of BF16 with a residual in fp32, for kernels that do something else before or behind it.
// V3's tokens of 7168 channels gained nothing.
struct AddedNorm {
  Slices<const BF16> x;
  Slices<float> residual;
  Scaling scaling;
  Slices<BF16> out;
  QuantizedOut quantized;
};

// A token of it in a block's registers.
constexpr int64_t kAddedTokenWidth = kNormThreads * kVector;  // at most
class AddedToken {
 public:
  __device__ __forceinline__ void LoadWeight(const AddedNorm& n) {
    LoadSteps<true>(n.scaling.weight, n.scaling.width, weight_);
  }
  __device__ __forceinline__ void LoadResidual(const AddedNorm& n, int64_t t) {
    LoadSteps<true>(static_cast<const float*>(n.residual[t]), n.scaling.width, sum_);
  }
  // x as BF16 holds it.
  __device__ __forceinline__ void Add(uint4 bits) {
    const Vector x = Unpack(bits);
#pragma unroll
    for (int c = 0; c < kVector; ++c) sum_[0].v[c] = x.v[c] + sum_[0].v[c];
  }
  __device__ __forceinline__ void Load(const AddedNorm& n, int64_t t) {
    const int64_t i = NormChannel(0);
    const uint4 x = i < n.scaling.width ? *reinterpret_cast<const uint4*>(n.x[t] + i) : uint4{};
    LoadResidual(n, t);
    Add(x);
  }
  __device__ __forceinline__ void Norm(const AddedNorm& n, const NormedToken<float>& to) const {
    Vector values[1] = {sum()};
    NormToken<true>(values, weight_, n.scaling, to);
  }
  __device__ __forceinline__ void StoreSum(const AddedNorm& n, int64_t t) const {
    const int64_t i = NormChannel(0);
    if (i < n.scaling.width) StoreVector<true>(n.residual[t], i, n.scaling.width, sum());
  }

 private:
  __device__ __forceinline__ Vector sum() const {
    Vector sum;
#pragma unroll
    for (int c = 0; c < kVector; ++c) sum.v[c] = sum_[0].v[c];
    return sum;
  }
  Raw<float> weight_[1], sum_[1];
};

inline bool IsAddedNorm(const RmsNormArgs& a) {
  return !a.absent() && a.x.dtype() == DType::kBF16 && !a.residual.absent() &&
         a.residual.dtype() == DType::kF32 && NormsVectors(a) && a.x.dim(1) <= kAddedTokenWidth;
}
// REQUIRES: IsAddedNorm.
inline AddedNorm AddedNormOf(const RmsNormArgs& a) {
  return {.x = SlicesOf<const BF16>(a.x),
          .residual = SlicesOf<float>(a.residual),
          .scaling = {Data<float>(a.weight), a.eps, a.x.dim(1)},
          .out = SlicesOf<BF16>(a.out),
          .quantized = QuantizedOutOf(a.quantized)};
}

}  // namespace fathom::kernels
