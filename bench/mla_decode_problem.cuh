// A step of rows with random pages, and what MLA decode makes of it, by LaunchMlaDecode or by a
// plain kernel in fp32.
#pragma once

#include <cmath>
#include <numeric>
#include <random>

#include "bench/gpu_bench.cuh"
#include "cuda/e4m3.h"
#include "ops/attend_absorbed/mla_decode_cuda.h"
#include "ops/kv_format.h"

namespace fathom::bench {

struct MlaRow {
  int context;     // positions before the row's tokens, and these
  int tokens = 1;  // the last ones of the context
};

// Gives pages FP8 latents: codes of numbers about 0 with a deviation of 100, and scales of 2^-8 to
// 2^-6. A block per page, a thread per position.
static __global__ void FillFp8(char* pool, int64_t page_bytes, int64_t scale_offset,
                               uint64_t seed) {
  char* page = pool + blockIdx.x * page_bytes;
  const uint64_t first = (seed << 40) + (blockIdx.x * 64 + threadIdx.x) * uint64_t{kMlaLatent};
  for (int i = 0; i < kMlaLatent; ++i) {
    float sum = -2;
    for (int j = 0; j < 4; ++j) sum += Mix(4 * (first + i) + j) * 0x1p-32f;
    page[threadIdx.x * kMlaLatent + i] =
        static_cast<char>(QuantizeTwo(sum * 173.0f, 0, /*scale=*/1.0f, /*reciprocal=*/1.0f));
  }
  reinterpret_cast<float*>(page + scale_offset)[threadIdx.x] =
      exp2f(-8.0f + static_cast<float>(Mix(first) % 3));
}

class MlaProblem {
 public:
  // `split_tokens` 0: the default split. The rows get slots and pages in random order; dead tokens
  // follow the live ones.
  MlaProblem(int heads, const std::vector<MlaRow>& rows, int split_tokens, int dead_tokens = 0,
             bool fp8 = false, uint64_t seed = 1)
      : heads(heads),
        rows(rows),
        split{.tokens = split_tokens},
        format(LatentKvFormat(fp8 ? DType::kF8E4M3 : DType::kBF16, kMlaLatent, kMlaRope)) {
    std::mt19937_64 random(seed);
    int total = 0;
    for (const MlaRow& row : rows) {
      max_pages = std::max(max_pages, (row.context + 63) / 64);
      total += (row.context + 63) / 64;
    }
    pages = total + 3;
    if (split_tokens == 0) split = MlaDecodeSplitOf(heads, max_pages, fp8);
    std::vector<int32_t> ids(pages), order(rows.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    page_table.assign(std::max<size_t>(1, rows.size()) * max_pages, -1);
    size_t next = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int i = 0; i < (rows[r].context + 63) / 64; ++i) {
        page_table[order[r] * max_pages + i] = ids[next++];
      }
      for (int i = 0; i < rows[r].tokens; ++i) {
        slots.push_back(order[r]);
        positions.push_back(rows[r].context - rows[r].tokens + i);
      }
    }
    live = static_cast<int>(slots.size());
    tokens = live + dead_tokens;
    slots.resize(tokens, 0);
    positions.resize(tokens, 0);
    q_latent.reset(new DeviceArray<__nv_bfloat16>(size_t(tokens) * heads * kMlaLatent));
    q.reset(new DeviceArray<__nv_bfloat16>(size_t(tokens) * heads * kQueryWidth));
    pool.reset(new DeviceArray<__nv_bfloat16>(size_t(pages) * format.page_bytes() / 2));
    out.reset(new DeviceArray<__nv_bfloat16>(size_t(tokens) * heads * kMlaLatent));
    Randomize(*q_latent, 3 * seed);
    Randomize(*q, 3 * seed + 1);
    Randomize(*pool, 3 * seed + 2);
    if (fp8) {
      FillFp8<<<pages, 64>>>(reinterpret_cast<char*>(pool->get()), format.page_bytes(),
                             format.Offset(KvPart::kLatentScale), 3 * seed + 2);
      BENCH_CHECK(cudaGetLastError());
    }
    d_slots.reset(new DeviceArray<int32_t>(slots));
    d_positions.reset(new DeviceArray<int32_t>(positions));
    d_page_table.reset(new DeviceArray<int32_t>(page_table));
    d_live.reset(new DeviceArray<int32_t>(std::vector<int32_t>{live}));
    SetSplit(split);
  }

  void SetSplit(const MlaDecodeSplit& to) {
    split = to;
    workspace.reset(
        new DeviceArray<std::byte>(MlaDecodeWorkspace(tokens, heads, max_pages, split)));
    BENCH_CHECK(cudaMemset(workspace->get(), 0xff, workspace->size()));  // NaN
    BENCH_CHECK(cudaDeviceSynchronize());
  }
  // The split of a step of `step_rows` of the rows, which have `step_tokens` tokens.
  void SplitForStep(int step_tokens, int step_rows) {
    const bool fp8 = format.Find(KvPart::kLatentScale) != nullptr;
    SetSplit(MlaDecodeSplitOfStep(step_tokens, step_rows, heads, max_pages, fp8));
  }

  MlaDecodeParams Params() const {
    return {.q_latent = q_latent->get(),
            .q_rope = q->get() + kQueryWidth - kMlaRope,
            .q_rope_stride = kQueryWidth,
            .latent = pool->get(),
            .scales = format.Find(KvPart::kLatentScale) != nullptr
                          ? reinterpret_cast<const float*>(pool->get() +
                                                           format.Offset(KvPart::kLatentScale) / 2)
                          : nullptr,
            .rope = pool->get() + format.Offset(KvPart::kRope) / 2,
            .pages = pages,
            .page_bytes = format.page_bytes(),
            .slots = d_slots->get(),
            .positions = d_positions->get(),
            .page_table = d_page_table->get(),
            .live = d_live->get(),
            .max_pages = max_pages,
            .tokens = tokens,
            .heads = heads,
            .scale = scale,
            .split = split,
            .workspace = {workspace->get(), workspace->size()},
            .out = out->get()};
  }

  static constexpr int kQueryWidth = 192;  // as in the models: 128 without, 64 with rotation
  int heads;
  std::vector<MlaRow> rows;
  MlaDecodeSplit split;
  KvFormat format;
  int max_pages = 1, pages = 0, live = 0, tokens = 0;
  float scale = 0.0721688f;  // 192^-0.5
  std::vector<int32_t> slots, positions, page_table;
  std::unique_ptr<DeviceArray<__nv_bfloat16>> q_latent, q, pool, out;
  std::unique_ptr<DeviceArray<int32_t>> d_slots, d_positions, d_page_table, d_live;
  std::unique_ptr<DeviceArray<std::byte>> workspace;
};

// A block per token and head, in fp32 throughout.
static __global__ void __launch_bounds__(256)
    MlaOracle(MlaDecodeParams p, int first_token, float* scores, float* out) {
  const int token = first_token + static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int64_t pair = int64_t{token} * p.heads + head;
  const int64_t local = int64_t{blockIdx.x} * p.heads + head;
  const int keys = p.positions[token] + 1, width = p.max_pages * 64;
  float* s = scores + local * width;
  __shared__ float q[kMlaLatent + kMlaRope], partial[256];
  const auto* q_latent = static_cast<const __nv_bfloat16*>(p.q_latent) + pair * kMlaLatent;
  const auto* q_rope = static_cast<const __nv_bfloat16*>(p.q_rope) + pair * p.q_rope_stride;
  for (int i = static_cast<int>(threadIdx.x); i < kMlaLatent + kMlaRope; i += 256) {
    q[i] = __bfloat162float(i < kMlaLatent ? q_latent[i] : q_rope[i - kMlaLatent]);
  }
  __syncthreads();
  const int32_t* table = p.page_table + int64_t{p.slots[token]} * p.max_pages;
  const auto page = [&](const void* plane, int key) {
    return static_cast<const char*>(plane) + table[key / 64] * p.page_bytes;
  };
  const auto latent = [&](int key, int i) {
    const char* plane = page(p.latent, key);
    const int at = key % 64 * kMlaLatent + i;
    if (p.scales == nullptr) {
      return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(plane)[at]);
    }
    const __half_raw code = __nv_cvt_fp8_to_halfraw(static_cast<uint8_t>(plane[at]), __NV_E4M3);
    return __half2float(__half(code)) *
           reinterpret_cast<const float*>(page(p.scales, key))[key % 64];
  };
  float max = -INFINITY;
  for (int key = static_cast<int>(threadIdx.x); key < keys; key += 256) {
    const auto* rope =
        reinterpret_cast<const __nv_bfloat16*>(page(p.rope, key)) + key % 64 * kMlaRope;
    float sum = 0;
    for (int i = 0; i < kMlaLatent; ++i) sum += q[i] * latent(key, i);
    for (int i = 0; i < kMlaRope; ++i) sum += q[kMlaLatent + i] * __bfloat162float(rope[i]);
    s[key] = sum * p.scale;
    max = fmaxf(max, s[key]);
  }
  partial[threadIdx.x] = max;
  __syncthreads();
  for (int i = 0; i < 256; ++i) max = fmaxf(max, partial[i]);
  __syncthreads();
  float total = 0;
  for (int key = static_cast<int>(threadIdx.x); key < keys; key += 256) {
    total += s[key] = expf(s[key] - max);
  }
  partial[threadIdx.x] = total;
  __syncthreads();
  total = 0;
  for (int i = 0; i < 256; ++i) total += partial[i];
  for (int i = static_cast<int>(threadIdx.x); i < kMlaLatent; i += 256) {
    float sum = 0;
    for (int key = 0; key < keys; ++key) sum += s[key] * latent(key, i);
    out[local * kMlaLatent + i] = sum / total;
  }
}

// [tokens, heads, latent] of `count` tokens from `first` on.
inline std::vector<float> Oracle(const MlaProblem& problem, int first, int count) {
  DeviceArray<float> scores(size_t(count) * problem.heads * problem.max_pages * 64);
  DeviceArray<float> out(size_t(count) * problem.heads * kMlaLatent);
  if (count > 0) {
    MlaOracle<<<dim3(count, problem.heads), 256>>>(problem.Params(), first, scores.get(),
                                                   out.get());
    BENCH_CHECK(cudaGetLastError());
  }
  return out.ToHost();
}

// What LaunchMlaDecode writes over a poisoned output.
inline std::vector<float> Decode(const MlaProblem& problem) {
  BENCH_CHECK(cudaMemset(problem.out->get(), 0xee, problem.out->size() * 2));
  LaunchMlaDecode(problem.Params(), nullptr);
  BENCH_CHECK(cudaDeviceSynchronize());
  const std::vector<__nv_bfloat16> bits = problem.out->ToHost();
  std::vector<float> out(bits.size());
  std::transform(bits.begin(), bits.end(), out.begin(),
                 [](__nv_bfloat16 x) { return __bfloat162float(x); });
  return out;
}

// ||got - want|| / ||want||; NaN unless all are numbers.
inline double RelativeError(const float* got, const float* want, size_t count) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < count; ++i) {
    difference += (double(got[i]) - want[i]) * (double(got[i]) - want[i]);
    norm += double(want[i]) * want[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace fathom::bench
