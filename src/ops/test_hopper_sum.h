// How Hopper's FP8 tensor cores add, for the tests of ops.
#pragma once

#include <cstdint>
#include <span>

namespace fathom {

// The sum of x[i] w[i] over a run (at most 128 channels), E4M3 codes without NaN: the bits of a
// chain of `wgmma.mma_async ... k32.f32.e4m3.e4m3` from zero, of any N and either order of
// operands.
//
// An instruction adds 32 products and its accumulator thus: with E the largest of their exponents,
// each is cut (towards zero) to a multiple of 2^(E - 13); these are added exactly, and the sum is
// cut to 14 significant bits. A product's exponent is the sum of its factors' (-6 for subnormal
// ones), whatever its mantissa; zeros have none.
//
// NVIDIA states no rule. This one gives every bit of 1,572,864 sums (single instructions and chains
// of four, onto zero and onto any fp32) of an H200: uniform, normal and sparse codes, subnormals,
// zeros beside large factors, cancellation, one sign; docs/design/fp8-gemm.md.
float HopperSum(std::span<const uint8_t> x, std::span<const uint8_t> w);

}  // namespace fathom
