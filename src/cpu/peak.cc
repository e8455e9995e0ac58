#include "cpu/peak.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>

#include "base/clock.h"
#include "cpu/amx.h"
#include "tensor/buffer.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define FATHOM_TARGET(features) __attribute__((target(features)))
#endif

namespace fathom {
namespace {

constexpr int kTrials = 5;  // of which the best counts
constexpr int kSums = 12;   // independent accumulators: enough to hide a latency of 6 cycles twice
constexpr int64_t kRounds = 100'000;  // of kSums instructions: a third of a millisecond or so
constexpr int64_t kPiecesPerThread = 64;
constexpr int64_t kReadGrain = int64_t{4} << 20;

std::atomic<uint64_t> sink;  // keeps results from being optimised away

// A kernel runs `rounds` times kSums instructions and returns the operations that it did.
using Arithmetic = double (*)(int64_t rounds);
constexpr int64_t kAhead = 8 << 10;
// Reads [p, p + n), and asks for what lies kAhead further, or does not; n is a multiple of
// kReadGrain.
using Reader = uint64_t (*)(const std::byte* p, int64_t n);

double FmaPortable(int64_t rounds) {
  constexpr int kLanes = 4;
  float sum[kSums * kLanes];
  for (int i = 0; i < kSums * kLanes; ++i) sum[i] = static_cast<float>(i);
  for (int64_t r = 0; r < rounds; ++r) {
    for (float& s : sum) s = s * 0.999f + 0.001f;
  }
  float total = 0;
  for (const float s : sum) total += s;
  sink = static_cast<uint64_t>(total);
  return 2.0 * kSums * kLanes * static_cast<double>(rounds);
}

template <bool kAsks>
uint64_t ReadPortable(const std::byte* p, int64_t n) {
  uint64_t sum[4] = {}, words[4];
  for (int64_t i = 0; i < n; i += sizeof words) {
    if constexpr (kAsks) __builtin_prefetch(p + i + kAhead);
    std::memcpy(words, p + i, sizeof words);
    for (int j = 0; j < 4; ++j) sum[j] ^= words[j];
  }
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

#if defined(__x86_64__)

FATHOM_TARGET("avx2,fma") double FmaAvx2(int64_t rounds) {
  const __m256 factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(0.001f);
  __m256 sum[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sum[i] = _mm256_set1_ps(static_cast<float>(i));
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sum[i] = _mm256_fmadd_ps(sum[i], factor, term);
  }
  __m256 total = sum[0];
#pragma GCC unroll 16
  for (int i = 1; i < kSums; ++i) total = _mm256_add_ps(total, sum[i]);
  sink = static_cast<uint64_t>(_mm256_cvtss_f32(total));
  return 2.0 * kSums * 8 * static_cast<double>(rounds);
}

FATHOM_TARGET("avx512f") double FmaAvx512(int64_t rounds) {
  const __m512 factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(0.001f);
  __m512 sum[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sum[i] = _mm512_fmadd_ps(sum[i], factor, term);
  }
  __m512 total = sum[0];
#pragma GCC unroll 16
  for (int i = 1; i < kSums; ++i) total = _mm512_add_ps(total, sum[i]);
  sink = static_cast<uint64_t>(_mm512_cvtss_f32(total));
  return 2.0 * kSums * 16 * static_cast<double>(rounds);
}

FATHOM_TARGET("avx512f,avx512bf16") double DotBf16(int64_t rounds) {
  const __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f80), b = (__m512bh)_mm512_set1_epi16(0x3c00);
  __m512 sum[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sum[i] = _mm512_dpbf16_ps(sum[i], a, b);
  }
  __m512 total = sum[0];
#pragma GCC unroll 16
  for (int i = 1; i < kSums; ++i) total = _mm512_add_ps(total, sum[i]);
  sink = static_cast<uint64_t>(_mm512_cvtss_f32(total));
  return 2.0 * kSums * 32 * static_cast<double>(rounds);
}

FATHOM_TARGET("avx512f,avx512vnni") double DotInt8(int64_t rounds) {
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-5);
  __m512i sum[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sum[i] = _mm512_set1_epi32(i);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
  }
  __m512i total = sum[0];
#pragma GCC unroll 16
  for (int i = 1; i < kSums; ++i) total = _mm512_add_epi32(total, sum[i]);
  sink = static_cast<uint64_t>(_mm512_cvtsi512_si32(total));
  return 2.0 * kSums * 64 * static_cast<double>(rounds);
}

// Four sums hide its latency. Fewer rounds than it is asked for: each takes several times as long.
template <bool kBf16>
FATHOM_AMX double DotAmx(int64_t rounds) {
  alignas(64) static const std::byte operand[kAmxRows * kAmxRowBytes] = {};
  rounds /= 16;
  BeginAmx(kAmxRows);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, operand, kAmxRowBytes);
  _tile_loadd(6, operand, kAmxRowBytes);
  for (int64_t r = 0; r < rounds; ++r) {
    if constexpr (kBf16) {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 6);
      _tile_dpbf16ps(2, 4, 6);
      _tile_dpbf16ps(3, 4, 6);
    } else {
      _tile_dpbsud(0, 4, 6);
      _tile_dpbsud(1, 4, 6);
      _tile_dpbsud(2, 4, 6);
      _tile_dpbsud(3, 4, 6);
    }
  }
  EndAmx();
  constexpr int64_t kChannels = kAmxRowBytes / (kBf16 ? 2 : 1);
  return 2.0 * 4 * kAmxRows * kChannels * 16 * static_cast<double>(rounds);
}

// In order: several streams and wider loads read no faster.
template <bool kAsks>
FATHOM_TARGET("avx2")
uint64_t ReadAvx2(const std::byte* p, int64_t n) {
  __m256i sum[4] = {};
  for (int64_t i = 0; i < n; i += sizeof sum) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const auto* from = reinterpret_cast<const __m256i*>(p + i) + j;
      if (kAsks && j % 2 == 0) __builtin_prefetch(p + i + j * 32 + kAhead);
      sum[j] = _mm256_xor_si256(sum[j], _mm256_loadu_si256(from));
    }
  }
  const __m256i all =
      _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(all, 0));
}

#endif

Arithmetic WidestFma() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return FmaAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return FmaAvx2;
#endif
  return FmaPortable;
}

template <bool kAsks>
Reader WidestReader() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return ReadAvx2<kAsks>;
#endif
  return ReadPortable<kAsks>;
}

double Best(ThreadPool& pool, Arithmetic kernel) {
  double best = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::atomic<double> operations = 0;
    const double begin = SecondsNow();
    pool.ParallelFor(pool.threads() * kPiecesPerThread, 1, [&](int64_t, int64_t, int) {
      operations.fetch_add(kernel(kRounds), std::memory_order_relaxed);
    });
    best = std::max(best, operations / (SecondsNow() - begin));
  }
  return best;
}

}  // namespace

ArithmeticPeaks MeasureArithmeticPeaks(ThreadPool& pool) {
  ArithmeticPeaks peaks;
  peaks.fp32 = Best(pool, WidestFma());
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) {
    peaks.bf16 = Best(pool, HasBf16Amx() ? DotAmx<true> : DotBf16);
  }
  if (__builtin_cpu_supports("avx512vnni")) {
    peaks.int8 = Best(pool, HasInt8Amx() ? DotAmx<false> : DotInt8);
  }
#endif
  return peaks;
}

double MeasureReadBandwidth(ThreadPool& pool, int64_t bytes) {
  const int64_t n = std::max(kReadGrain, bytes / kReadGrain * kReadGrain);
  const Buffer memory(static_cast<size_t>(n));
  std::byte* const data = memory.data();
  pool.ParallelFor(n, kReadGrain, [&](int64_t begin, int64_t end, int) {
    std::memset(data + begin, 1, static_cast<size_t>(end - begin));  // so that every page is there
  });
  const Reader readers[] = {WidestReader<false>(), WidestReader<true>()};
  double best = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    // Some machines foresee what is read, others want to be asked.
    for (const Reader read : readers) {
      const double begin = SecondsNow();
      pool.ParallelFor(n, kReadGrain, [&](int64_t from, int64_t to, int) {
        sink.fetch_xor(read(data + from, to - from), std::memory_order_relaxed);
      });
      best = std::max(best, static_cast<double>(n) / (SecondsNow() - begin));
    }
  }
  return best;
}

std::string CpuModelName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace fathom
