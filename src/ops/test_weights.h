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
std::unique_ptr<PackedWeight> Pack(const Backend& backend, const std::vector<Parts>& matrices,
                                   PackOptions options = {});

// The weights of a matrix in fp32, [out, in].
std::vector<float> Dense(const Parts& parts);

// What a real FP8 product does, as plainly as can be written and in the order that
// linear_reference.h states: out = x W^T for one row of x.
std::vector<float> Fp8Product(const std::vector<float>& x, const Parts& parts, bool scale_ue8m0);
// silu(gate) * up of [gate, up], which were rounded to `gate_up_type`, rounded to `type`.
std::vector<float> SiluProduct(const std::vector<float>& gate_up, DType gate_up_type, DType type);
// x W^T for one row of x, in double; the weights rounded to a type.
std::vector<float> ExactProduct(const std::vector<float>& x, const Parts& parts,
                                DType weights = DType::kF32);

}  // namespace fathom
