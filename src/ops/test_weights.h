// Random weights as a checkpoint stores them, for the tests of ops.
#pragma once

#include <memory>
#include <vector>

#include "ops/testing.h"
#include "quant/weight_tensor.h"

namespace fathom {

// A matrix [out, in] of any checkpoint type, with the memory behind it. FP8 has a scale per 128x128
// tile, none of them a power of two.
struct TestMatrix {
  TestMatrix(DType dtype, int64_t out, int64_t in, uint64_t seed);
  // Of given numbers, rounded to the type; `seed`: of the scales.
  TestMatrix(DType dtype, int64_t out, int64_t in, uint64_t seed,
             const std::vector<float>& numbers);
  TestTensor values, scales;
  WeightTensor weight;
};

using Parts = std::vector<WeightTensor>;
struct PackOptions {
  bool exact_activations = false;
  bool scale_ue8m0 = false;
};
// One matrix per entry.
std::unique_ptr<PackedWeight> Pack(const TestBackend& backend, const std::vector<Parts>& matrices,
                                   PackOptions options = {});

// The weights of a matrix in fp32, [out, in].
std::vector<float> Dense(const Parts& parts);

// What is open in FP8 products: how a run is summed, and how its scaled sum is added to those
// before it.
enum class Fp8Sums {
  kReference,  // as linear_reference.h states
  kHopper,     // HopperSum (test_hopper_sum.h), by a fused multiply-add: Hopper's FP8 kernels
};
// What a table may do: which kernel runs depends on the GPU and the weights' shape.
std::vector<Fp8Sums> SumsOf(const TestBackend& backend);
// What a real FP8 product does, as plainly as can be written: out = x W^T for one token of x.
// Hopper's sums have so many chains (fp8_chains.h).
std::vector<float> Fp8Product(const std::vector<float>& x, const Parts& parts, bool scale_ue8m0,
                              Fp8Sums sums = Fp8Sums::kReference, int chains = 1);
// silu(gate) * up of [gate, up], which were rounded to `gate_up_type`, rounded to `type`.
std::vector<float> SiluProduct(const std::vector<float>& gate_up, DType gate_up_type, DType type);
// x W^T for one token of x, in double; the weights rounded to a type.
std::vector<float> ExactProduct(const std::vector<float>& x, const Parts& parts,
                                DType weights = DType::kF32);

}  // namespace fathom
