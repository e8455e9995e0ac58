#include "ops/testing.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "cpu/cpu_stream.h"
#include "quant/e4m3.h"

namespace fathom {
namespace {

void Store(const TensorView& view, int64_t i, float x) {
  switch (view.dtype()) {
    case DType::kF32: view.As<float>()[i] = x; return;
    case DType::kBF16: view.As<BF16>()[i] = ToBF16(x); return;
    case DType::kF16:
      view.As<F16>()[i] = {std::bit_cast<uint16_t>(static_cast<_Float16>(x))};
      return;
    case DType::kF8E4M3: view.As<E4M3>()[i] = ToE4M3(x); return;
    case DType::kI32: view.As<int32_t>()[i] = static_cast<int32_t>(x); return;
    case DType::kU8: view.As<uint8_t>()[i] = static_cast<uint8_t>(x); return;
    default: CHECK(false, "{}", view.ToString());
  }
}

bool SameSpecial(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || (std::isinf(b) && a == b);
}

}  // namespace

Stream& TestBackend::stream() const {
  static CpuStream of_oracle(1);
  return ops->name == "reference" ? of_oracle : StreamUnderTest(*this);
}

std::ostream& operator<<(std::ostream& out, const TestBackend& backend) {
  std::string name(backend.ops->name);
  std::replace(name.begin(), name.end(), '-', '_');  // names of tests have no other sign
  return out << name << (backend.activations == Fp8Activations::kExact ? "_exact_" : "_")
             << backend.threads;
}

TestBackend Oracle(Fp8Activations activations) {
  return {&ReferenceOps(activations), 1, activations};
}

std::vector<TestBackend> Backends(std::initializer_list<Fp8Activations> modes) {
  std::vector<TestBackend> backends;
  for (const Fp8Activations mode : modes) {
    for (const TestBackend& backend : TablesUnderTest(mode)) backends.push_back(backend);
  }
  return backends;
}

TestTensor::TestTensor(DType dtype, std::initializer_list<int64_t> shape)
    : view_(nullptr, dtype, shape) {
  const size_t bytes = view_.elements() * ByteSize(dtype);
  data_.reset(AllocateTestMemory(bytes));
  if (bytes > 0) std::memset(data_.get(), kPoison, bytes);
  view_ = TensorView(data_.get(), dtype, shape);
}

TestTensor::TestTensor(DType dtype, std::initializer_list<int64_t> shape,
                       const std::vector<float>& values)
    : TestTensor(dtype, shape) {
  CHECK(static_cast<int64_t>(values.size()) <= view_.elements(), "{} values for {}", values.size(),
        view_.ToString());
  for (size_t i = 0; i < values.size(); ++i) Store(view_, i, values[i]);
}

std::vector<float> TestTensor::Floats() const {
  const int64_t n = view_.elements();
  std::vector<float> values(n);
  const TensorView flat = view_.Reshaped({1, n});
  for (int64_t i = 0; i < n; ++i) values[i] = LoadFloat(flat, 0, i);
  return values;
}

std::vector<int32_t> TestTensor::Ints() const {
  return std::vector<int32_t>(view_.As<int32_t>(), view_.As<int32_t>() + view_.elements());
}

bool TestTensor::PoisonedFrom(int64_t begin) const {
  const TensorView rest = view_.Slice(0, begin, view_.dim(0));
  const auto* bytes = static_cast<const uint8_t*>(rest.data());
  return std::all_of(bytes, bytes + rest.elements() * ByteSize(rest.dtype()),
                     [](uint8_t b) { return b == kPoison; });
}

TestTensor Ints(std::initializer_list<int64_t> shape, const std::vector<int32_t>& values) {
  TestTensor tensor(DType::kI32, shape);
  CHECK(static_cast<int64_t>(values.size()) <= tensor.view().elements());
  std::copy(values.begin(), values.end(), tensor.view().As<int32_t>());
  return tensor;
}

TestTensor Live(int32_t n) {
  return Ints({1}, {n});
}

std::vector<float> Normals(int64_t n, uint64_t seed, float deviation) {
  Rng rng(seed);
  std::vector<float> values(n);
  for (float& x : values) {
    x = ToFloat(ToBF16(rng.Normal() * deviation));
    x = static_cast<float>(static_cast<_Float16>(x));
  }
  return values;
}

std::vector<float> PickVectors(const std::vector<float>& x, int64_t width,
                               const std::vector<int>& indices) {
  std::vector<float> picked;
  for (int i : indices) {
    picked.insert(picked.end(), x.begin() + i * width, x.begin() + (i + 1) * width);
  }
  return picked;
}

std::vector<int> Range(int n) {
  std::vector<int> range(n);
  std::iota(range.begin(), range.end(), 0);
  return range;
}

std::vector<float> Signs(int64_t n, uint64_t seed, float size) {
  Rng rng(seed);
  std::vector<float> values(n);
  for (float& x : values) x = size * static_cast<float>(static_cast<int>(rng.Below(3)) - 1);
  return values;
}

std::vector<float> Rounded(std::vector<float> x, DType type) {
  if (type == DType::kF32) return x;
  CHECK(type == DType::kBF16);
  for (float& value : x) value = ToFloat(ToBF16(value));
  return x;
}

double RelativeError(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (SameSpecial(a[i], b[i])) continue;
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  if (std::isnan(difference)) return INFINITY;
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
        << "element " << i << " of " << a.size() << ": " << a[i] << " and " << b[i];
  }
}

// The test's largest error, and its largest share of what it may be, become properties of it, for
// whoever reads the report.
static void RecordError(double error, double tolerance) {
  static const testing::TestInfo* test = nullptr;
  static double largest = 0, largest_share = 0;
  const testing::TestInfo* current = testing::UnitTest::GetInstance()->current_test_info();
  if (current != std::exchange(test, current)) largest = largest_share = -1;
  const auto record = [](const char* name, double value, double& most) {
    if (value <= most) return;
    most = value;
    testing::Test::RecordProperty(name, fmt::format("{:.3e}", value));
  };
  record("largest_error", error, largest);
  if (tolerance > 0) record("largest_share_of_tolerance", error / tolerance, largest_share);
}

void ExpectClose(const std::vector<float>& a, const std::vector<float>& b, double tolerance) {
  ExpectCloseToOneOf(a, {b}, tolerance);
}

void ExpectCloseToOneOf(const std::vector<float>& a, const std::vector<std::vector<float>>& results,
                        double tolerance) {
  const bool is_bf16 = std::all_of(
      a.begin(), a.end(), [](float x) { return (std::bit_cast<uint32_t>(x) & 0xffff) == 0; });
  double error = INFINITY;
  for (const std::vector<float>& b : results) {
    ASSERT_EQ(a.size(), b.size());
    error = std::min(error, RelativeError(a, is_bf16 ? Rounded(b, DType::kBF16) : b));
  }
  RecordError(error, tolerance);
  EXPECT_LE(error, tolerance);
}

void ExpectAsOracle(const TestBackend& backend, double tolerance,
                    const std::function<std::vector<float>(const TestBackend&)>& run) {
  const std::vector<float> result = run(backend);
  ExpectClose(result, run(Oracle(backend.activations)), tolerance);
  if (backend.threads > 1) ExpectSameBits(result, run({backend.ops, 1, backend.activations}));
}

void ExpectTokenInvariance(int n, int64_t width,
                           const std::function<std::vector<float>(const std::vector<int>&)>& run) {
  const std::vector<float> all = run(Range(n));
  ASSERT_EQ(static_cast<int64_t>(all.size()), n * width);
  for (int t = 0; t < n; ++t) {
    SCOPED_TRACE(testing::Message() << "token " << t << " alone");
    ExpectSameBits(run({t}), PickVectors(all, width, {t}));
  }
  std::vector<int> shuffled = Range(n);
  Rng rng(7);
  for (int i = n - 1; i > 0; --i) std::swap(shuffled[i], shuffled[rng.Below(i + 1)]);
  for (int size = 2; size <= n; size += (size < 5 ? 1 : 7)) {
    SCOPED_TRACE(testing::Message() << "among " << size);
    const std::vector<int> some(shuffled.begin(), shuffled.begin() + size);
    ExpectSameBits(run(some), PickVectors(all, width, some));
  }
}

double Rounding(const TestBackend& backend) {
  return backend.act() == DType::kBF16 ? 2e-3 : 0;
}

double Summing(const TestBackend& backend) {
  return backend.act() == DType::kBF16 ? 2e-5 : 0;
}

}  // namespace fathom
