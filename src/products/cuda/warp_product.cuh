// A warp's product of one output's weights with some tokens of activations: the heart of the
// portable linear kernels. Sums: a lane takes every 32nd channel in ascending order, then a tree
// over lanes, so that a token's bits do not depend on the tokens beside it.
#pragma once

#include "cuda/kernels.cuh"
#include "products/cuda/cuda_weight.h"

namespace fathom::kernels {

// CudaWeight's pointers.
struct Matrices {
  const void* values;
  const float* scales;                 // of FP8
  Groups output_groups, channel_runs;  // of FP8
  int64_t count, out, in, parts, part_out, part_scale_groups, runs;

  __device__ int64_t RunBegin(int64_t r) const { return channel_runs.Begin(r); }
  __device__ int64_t RunEnd(int64_t r) const { return channel_runs.End(r, in); }
};
inline Matrices MatricesOf(const PackedWeight* weight) {
  const CudaWeight& w = AsCuda(weight);
  const bool fp8 = w.format.values == WeightType::kE4M3;
  return {.values = w.values->data(),
          .scales = fp8 ? reinterpret_cast<const float*>(w.scales->data()) : nullptr,
          .output_groups = w.format.scales.outputs,
          .channel_runs = w.channel_runs(),
          .count = w.count,
          .out = w.out,
          .in = w.in,
          .parts = w.parts,
          .part_out = w.part_out,
          .part_scale_groups = w.part_scale_groups,
          .runs = fp8 ? w.runs() : 0};
}

// The activations of a token: numbers, or E4M3 codes with a scale per run.
template <class X>
struct ActivationsOfToken {
  const X* x;
  const float* scales;  // null: 1
};

template <class W, class X, int kTokens>
__device__ void WarpProduct(const Matrices& m, int64_t matrix, int64_t n,
                            const ActivationsOfToken<X> (&tokens)[kTokens],
                            float (&sums)[kTokens]) {
  const int lane = threadIdx.x % kWarp;
  const W* w = static_cast<const W*>(m.values) + (matrix * m.out + n) * m.in;
#pragma unroll
  for (int r = 0; r < kTokens; ++r) sums[r] = 0;
  if constexpr (std::is_same_v<W, E4M3>) {
    const int64_t part = matrix * m.parts + n / m.part_out;
    const float* scales =
        m.scales + (part * m.part_scale_groups + m.output_groups.Of(n % m.part_out)) * m.runs;
    for (int64_t run = 0; run < m.runs; ++run) {
      float partial[kTokens] = {};
      for (int64_t k = m.RunBegin(run) + lane; k < m.RunEnd(run); k += kWarp) {
        const float weight = Load(w + k);
#pragma unroll
        for (int r = 0; r < kTokens; ++r) partial[r] += Load(tokens[r].x + k) * weight;
      }
#pragma unroll
      for (int r = 0; r < kTokens; ++r) {
        const float scale = tokens[r].scales == nullptr ? 1.0f : tokens[r].scales[run];
        sums[r] += partial[r] * (scale * scales[run]);
      }
    }
  } else {
    for (int64_t k = lane; k < m.in; k += kWarp) {
      const float weight = Load(w + k);
#pragma unroll
      for (int r = 0; r < kTokens; ++r) sums[r] += Load(tokens[r].x + k) * weight;
    }
  }
#pragma unroll
  for (int r = 0; r < kTokens; ++r) sums[r] = WarpSum(sums[r]);
}

// Calls run(W{}) with the type of the weights' elements.
template <class Run>
void WithFormat(const WeightFormat& format, const Run& run) {
  switch (format.values) {
    case WeightType::kF32: return run(float{});
    case WeightType::kF16: return run(F16{});
    case WeightType::kBF16: return run(BF16{});
    case WeightType::kE4M3: return run(E4M3{});
    case WeightType::kInt8:
    case WeightType::kInt4: break;  // of CPUs
  }
  CHECK(false, "a product of a format that CUDA does not have");
}

}  // namespace fathom::kernels
