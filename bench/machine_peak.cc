#include "bench/machine_peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "cpu/simd.h"
#include "tensor/buffer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/machine_peak.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace fathom {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

uint32_t ReadAll(const uint32_t* p, int64_t n) {
  const hn::ScalableTag<uint32_t> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (int64_t i = 0; i + 4 * lanes <= n; i += 4 * lanes) {
    a = hn::Xor(a, hn::LoadU(d, p + i));
    b = hn::Xor(b, hn::LoadU(d, p + i + lanes));
    c = hn::Xor(c, hn::LoadU(d, p + i + 2 * lanes));
    e = hn::Xor(e, hn::LoadU(d, p + i + 3 * lanes));
  }
  return hn::GetLane(hn::Xor(hn::Xor(a, b), hn::Xor(c, e)));
}

// Returns the FLOPs done.
double ManyFmas(int64_t rounds, float* out) {
  const hn::ScalableTag<float> d;
  constexpr int kSums = 12;
  hn::Vec<decltype(d)> sum[kSums];
  const auto factor = hn::Set(d, 0.999f), term = hn::Set(d, 0.001f);
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sum[i] = hn::Set(d, static_cast<float>(i));
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sum[i] = hn::MulAdd(sum[i], factor, term);
  }
  auto total = sum[0];
#pragma GCC unroll 16
  for (int i = 1; i < kSums; ++i) total = hn::Add(total, sum[i]);
  *out = hn::GetLane(total);
  return 2.0 * kSums * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
}

}  // namespace HWY_NAMESPACE
}  // namespace fathom
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom {
namespace {

HWY_EXPORT(ReadAll);
HWY_EXPORT(ManyFmas);

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::atomic<uint32_t> sink;  // keeps results from being optimised away

constexpr int kTrials = 5;  // of which the best counts

}  // namespace

double MeasureReadBandwidth(ThreadPool& pool) {
  constexpr int64_t kBytes = int64_t{512} << 20, kGrain = 1 << 20;
  const Buffer memory(kBytes);
  std::fill_n(memory.data(), kBytes, std::byte{1});  // so that every page is there
  double best = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const double begin = Seconds();
    pool.ParallelFor(kBytes, kGrain, [&](int64_t from, int64_t to, int) {
      sink = HWY_DYNAMIC_DISPATCH(ReadAll)(reinterpret_cast<const uint32_t*>(memory.data() + from),
                                           (to - from) / 4);
    });
    best = std::max(best, static_cast<double>(kBytes) / (Seconds() - begin));
  }
  return best;
}

double MeasureFmaPeak(ThreadPool& pool) {
  constexpr int64_t kRounds = 4'000'000;
  double best = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    double flops = 0;
    const double begin = Seconds();
    pool.ParallelFor(pool.threads(), 1, [&](int64_t, int64_t, int thread) {
      float result;
      const double done = HWY_DYNAMIC_DISPATCH(ManyFmas)(kRounds, &result);
      sink = static_cast<uint32_t>(result);
      if (thread == 0) flops = done;
    });
    best = std::max(best, flops * pool.threads() / (Seconds() - begin));
  }
  return best;
}

}  // namespace fathom
#endif  // HWY_ONCE
