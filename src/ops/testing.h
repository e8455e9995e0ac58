// Tables, tensors and comparisons for the tests of ops.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "base/rng.h"
#include "ops/ops.h"

namespace fathom {

// A table under test, on so many threads.
struct TestBackend {
  const Ops* ops = nullptr;
  int threads = 1;
  Fp8Activations activations = Fp8Activations::kQuantized;  // what the table was asked for

  DType act() const { return ops->activation; }
  Stream& stream() const;
};
std::ostream& operator<<(std::ostream& out, const TestBackend& backend);  // "cpu_2", "cpu_exact_2"

// The reference table.
TestBackend Oracle(Fp8Activations activations = Fp8Activations::kQuantized);
// The tables under test, and the oracle beside CPU tables.
std::vector<TestBackend> Backends(std::initializer_list<Fp8Activations> modes);

// What a test binary is linked with: testing_cpu.cc or testing_cuda.cc.
std::vector<TestBackend> TablesUnderTest(Fp8Activations mode);
Stream& StreamUnderTest(const TestBackend& backend);
std::string MissingDevice(const TestBackend& backend);  // why it cannot run here; empty if it can
std::byte* AllocateTestMemory(size_t bytes);            // aligned to 64 bytes, for host and device
void FreeTestMemory(std::byte* memory);

// A test of every table: `EVERY_BACKEND(FooTest);`, then TEST_P(FooTest, ...) with GetParam().
class OpTest : public testing::TestWithParam<TestBackend> {
 protected:
  void SetUp() override {
    if (const std::string why = MissingDevice(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
};
#define EVERY_BACKEND_OF(Test, ...)                                             \
  class Test : public OpTest {};                                                \
  INSTANTIATE_TEST_SUITE_P(All, Test, testing::ValuesIn(Backends(__VA_ARGS__)), \
                           [](const auto& info) { return testing::PrintToString(info.param); })
#define EVERY_BACKEND(Test) EVERY_BACKEND_OF(Test, {Fp8Activations::kQuantized})
// Where weights are multiplied the mode counts.
#define EVERY_BACKEND_AND_MODE(Test) \
  EVERY_BACKEND_OF(Test, {Fp8Activations::kExact, Fp8Activations::kQuantized})

// Poison: what capacity beyond the live count holds before an op runs, and must hold after.
inline constexpr uint8_t kPoison = 0xab;

// A contiguous tensor with memory of exactly its size, aligned to 64 bytes; poisoned at first.
class TestTensor {
 public:
  TestTensor() = default;
  TestTensor(DType dtype, std::initializer_list<int64_t> shape);
  // From fp32, rounded to the dtype; `values` may be fewer than the elements.
  TestTensor(DType dtype, std::initializer_list<int64_t> shape, const std::vector<float>& values);

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT: implicit on purpose
  std::vector<float> Floats() const;                    // all elements, as fp32
  std::vector<int32_t> Ints() const;
  // Whether what follows from index `begin` of dimension 0 on holds poison still.
  bool PoisonedFrom(int64_t begin) const;

 private:
  struct Free {
    void operator()(std::byte* p) const { FreeTestMemory(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  TensorView view_;
};
TestTensor Ints(std::initializer_list<int64_t> shape, const std::vector<int32_t>& values);
TestTensor Live(int32_t n);

// n numbers of a normal distribution that F16 and BF16 hold exactly (seven significant bits).
std::vector<float> Normals(int64_t n, uint64_t seed, float deviation = 1);
// The vectors `indices` of x, of this width each.
std::vector<float> PickVectors(const std::vector<float>& x, int64_t width,
                               const std::vector<int>& indices);
std::vector<int> Range(int n);  // 0, 1, ..., n - 1
// n numbers of {-size, 0, size}. Tensor cores sum the products of such numbers exactly.
std::vector<float> Signs(int64_t n, uint64_t seed, float size = 1);
// As a tensor of this type holds them.
std::vector<float> Rounded(std::vector<float> x, DType type);

// Runs an op of the backend's table with exactly the work space it asks for, filled with NaN.
template <class Args>
void RunOp(const TestBackend& backend, Op<Args> Ops::*op, const Args& args) {
  const Op<Args>& function = backend.ops->*op;
  const size_t bytes = function.Workspace(backend.stream(), args);
  TestTensor workspace(DType::kU8, {static_cast<int64_t>(bytes)});
  if (bytes > 0) std::memset(workspace.view().data(), 0xff, bytes);
  OpContext context = {backend.stream(), {static_cast<std::byte*>(workspace.view().data()), bytes}};
  function(context, args);
  context.stream.Synchronize();
}

// ||a - b|| / ||b||. NaN and infinities must agree in place and sign and count as equal.
double RelativeError(const std::vector<float>& a, const std::vector<float>& b);
void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b);
// An `a` that is BF16 throughout is held against `b` as BF16 stores it.
void ExpectClose(const std::vector<float>& a, const std::vector<float>& b, double tolerance);
// The same of the closest of several right results: where a contract leaves open in which type a
// table keeps what lies between its steps, or how it sums.
void ExpectCloseToOneOf(const std::vector<float>& a, const std::vector<std::vector<float>>& results,
                        double tolerance);

// Calls run(backend) and expects the result of the oracle in its mode within `tolerance`, and the
// same bits on one thread.
void ExpectAsOracle(const TestBackend& backend, double tolerance,
                    const std::function<std::vector<float>(const TestBackend&)>& run);
// run(tokens) gives `width` numbers per token of the list, which picks from tokens 0..n-1. Expects
// a token's bits to be the same alone, among others and at any place.
void ExpectTokenInvariance(int n, int64_t width,
                           const std::function<std::vector<float>(const std::vector<int>&)>& run);

// How far a last bit of BF16 that falls otherwise here and there may take a result: 0 for tables
// that do not round.
double Rounding(const TestBackend& backend);
// How far its sums of products may lie from sums in fp32: 0 for tables on CPUs; tensor cores drop
// low bits of BF16 products too. (Of FP8 products: Fp8Sums, test_weights.h.)
double Summing(const TestBackend& backend);

}  // namespace fathom
