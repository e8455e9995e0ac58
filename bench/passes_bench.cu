// The passes over memory between products: the norm with residual and quantised copy, rotation and
// cache, quantisation, and what experts need around their products (sort, gather, sum), on
// V2-Lite's and V3's shapes. Medians of graph replays. Each launch has tokens of its own among
// kAllTokens: many tokens come from memory, few from the L2, as in a step. GB/s count each byte
// read or written once; `of copy` is their share of what a plain copy reaches in the same run.
// `bits` are a sum over what a first launch wrote: the same in versions that compute the same bits.
#include <cinttypes>
#include <cstring>
#include <memory>
#include <numeric>

#include "bench/gpu_bench.cuh"
#include "cuda/device.h"
#include "ops/cuda_ops.h"
#include "ops/moe_experts/grouped_gemm_cuda.h"
#include "products/cuda/quantize_tokens.h"

namespace fathom::bench {
namespace {

constexpr int kReplays = 15, kMostLaunches = 64;
constexpr int64_t kMostTokens = 4096, kSlots = 8, kAllTokens = kSlots * kMostTokens;
constexpr int64_t kLatent = 512, kRope = 64, kHeadDim = 192;

struct Shape {
  const char* name;
  int64_t hidden, heads, experts, routed, shared;
  int64_t topk() const { return routed + shared; }
};
constexpr Shape kShapes[] = {{"V2-Lite", 2048, 16, 64, 6, 2}, {"V3", 7168, 128, 256, 8, 1}};

__global__ void SumOfBits(const uint32_t* words, size_t count, unsigned long long* sum) {
  unsigned long long mine = 0;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    mine += Mix((uint64_t{words[i]} << 32) + i + 1);
  }
  atomicAdd(sum, mine);
}

// Memory of BF16 numbers about 0, which other types use too.
struct Memory {
  explicit Memory(int64_t bytes) : array(static_cast<size_t>((bytes + 511) / 512 * 256)) {}
  template <class T>
  T* As() const {
    return reinterpret_cast<T*>(array.get());
  }
  DeviceArray<__nv_bfloat16> array;
};

// The ids of a router that chooses evenly, shared experts behind them; and where a sort puts pairs.
struct Routes {
  Routes(const Shape& s, int64_t tokens) : ids(tokens * s.topk()), places(ids.size()) {
    std::vector<int32_t> begins(s.experts + s.shared + 1);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t j = 0; j < s.topk(); ++j) {
        const int64_t spread = 1 + t % 7;
        ids[t * s.topk() + j] = static_cast<int32_t>(
            j < s.routed ? (t * 29 + j * spread) % s.experts : s.experts + j - s.routed);
      }
    }
    for (const int32_t id : ids) ++begins[id + 1];
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    for (size_t i = 0; i < ids.size(); ++i) places[i] = begins[ids[i]]++;
  }
  std::vector<int32_t> ids, places;
};

struct Output {
  void* data;
  int64_t bytes;
};

class Passes {
 public:
  Passes(CudaDevice& device, const Shape& s, double copy)
      : device_(device),
        s_(s),
        copy_(copy),
        x_(kAllTokens * s.hidden * 2),
        residual_(kAllTokens * s.hidden * 4),
        out_(kAllTokens * s.hidden * 2),
        codes_(kAllTokens * s.hidden),
        scales_(kAllTokens * s.hidden / 32),
        weight_(s.hidden * 4),
        q_(kAllTokens * s.heads * kHeadDim * 2),
        kv_(kAllTokens * (kLatent + kRope) * 2),
        pages_(kAllTokens * (kLatent + kRope) * 2),
        cos_sin_(kMostTokens * kRope * 4),
        pairs_(kAllTokens * s.topk() * s.hidden * 2),
        pair_codes_(kAllTokens * s.topk() * s.hidden),
        pair_scales_(kAllTokens * s.topk() * s.hidden / 32),
        weights_(kAllTokens * s.topk() * 4),
        sorted_(kMostTokens * s.topk() * 4),
        counts_(1024 * 4),
        sum_(1) {
    std::vector<int32_t> slots(kAllTokens), positions(kAllTokens), table(kAllTokens / 64);
    for (int64_t i = 0; i < kAllTokens; ++i) {
      slots[i] = static_cast<int32_t>(i / kMostTokens), positions[i] = i % kMostTokens;
    }
    std::iota(table.begin(), table.end(), 0);
    slots_ = std::make_unique<DeviceArray<int32_t>>(slots);
    positions_ = std::make_unique<DeviceArray<int32_t>>(positions);
    table_ = std::make_unique<DeviceArray<int32_t>>(table);
  }

  // False if the sort is wrong.
  bool Run(int64_t tokens) {
    tokens_ = tokens;
    const Routes routes(s_, tokens);
    const DeviceArray<int32_t> live(std::vector<int32_t>{static_cast<int32_t>(tokens)});
    const DeviceArray<int32_t> ids(routes.ids), places(routes.places);
    live_ = live.get(), ids_ = ids.get(), places_ = places.get();
    const int64_t topk = s_.topk(), wide = tokens * s_.hidden, pitch = (tokens + 31) / 32 * 32;
    const int64_t pair_pitch = (tokens * topk + 31) / 32 * 32;
    const int64_t rotated = tokens * (s_.heads * kRope + kLatent + kRope) * 2;
    Time("norm", wide * 13,
         {{residual_.As<void>(), wide * 4}, {out_.As<void>(), wide * 2}, {codes_.As<void>(), wide}},
         [&](int64_t token, cudaStream_t) { Norm(token, pitch); });
    Time("rotate and cache", 2 * rotated,
         {{q_.As<void>(), tokens * s_.heads * kHeadDim * 2},
          {pages_.As<void>(), 64 * 2 * (kLatent + kRope)}},
         [&](int64_t token, cudaStream_t) { Rotate(token); });
    Time("quantise", wide * 3, {{codes_.As<void>(), wide}},
         [&](int64_t token, cudaStream_t stream) {
           LaunchQuantizeTokens(Quantize(token, {codes_.As<uint8_t>() + token * s_.hidden,
                                                 scales_.As<float>(), pitch}),
                                stream);
         });
    Time("quantise for experts", wide * (2 + topk), {{pair_codes_.As<void>(), wide * topk}},
         [&](int64_t token, cudaStream_t stream) {
           QuantizeTokensParams p =
               Quantize(token, {pair_codes_.As<uint8_t>() + token * topk * s_.hidden,
                                pair_scales_.As<float>(), pair_pitch});
           p.places = places_, p.copies = static_cast<int32_t>(topk);
           LaunchQuantizeTokens(p, stream);
         });
    Time("gather for experts", wide * (2 + 2 * topk), {{pairs_.As<void>(), wide * topk * 2}},
         [&](int64_t token, cudaStream_t stream) { Gather(token, stream); });
    Time("sum over experts", wide * (2 + 2 * topk), {{out_.As<void>(), wide * 2}},
         [&](int64_t token, cudaStream_t stream) { Combine(token, stream); });
    Time("sort", tokens * topk * 8, {}, [&](int64_t, cudaStream_t stream) { Sort(stream); });
    return SortIsRight(routes);
  }

 private:
  void Norm(int64_t token, int64_t pitch) {
    const auto wide = [&](void* data, DType dtype) {
      return TensorView(data, dtype, {tokens_, s_.hidden});
    };
    RmsNormArgs args;
    args.x = wide(x_.As<BF16>() + token * s_.hidden, DType::kBF16);
    args.residual = wide(residual_.As<float>() + token * s_.hidden, DType::kF32);
    args.weight = TensorView(weight_.As<float>(), DType::kF32, {s_.hidden});
    args.live = TensorView(const_cast<int32_t*>(live_), DType::kI32, {1});
    args.out = wide(out_.As<BF16>() + token * s_.hidden, DType::kBF16);
    args.quantized = {wide(codes_.As<uint8_t>() + token * s_.hidden, DType::kF8E4M3),
                      TensorView(scales_.As<float>(), DType::kF32, {s_.hidden / 128, pitch})};
    OpContext context = {device_.stream(), {}};
    RmsNormCuda(context, args);
  }
  void Rotate(int64_t token) {
    const int64_t width = kLatent + kRope, q_width = s_.heads * kHeadDim, pages = kAllTokens / 64;
    const auto tokens = [&](const DeviceArray<int32_t>& of) {
      return TensorView(of.get() + token, DType::kI32, {tokens_});
    };
    RotateAndCacheArgs args;
    args.kv_a = TensorView(kv_.As<BF16>() + token * width, DType::kBF16, {tokens_, width});
    args.latent_norm = TensorView(weight_.As<float>(), DType::kF32, {kLatent});
    args.q_rope = TensorView(q_.As<BF16>() + token * q_width + kHeadDim - kRope, DType::kBF16,
                             {tokens_, s_.heads, kRope}, {q_width, kHeadDim, 1});
    args.cos_sin = TensorView(cos_sin_.As<float>(), DType::kF32, {kMostTokens, 2, kRope / 2});
    args.tokens = {tokens(*slots_), tokens(*positions_),
                   TensorView(table_->get(), DType::kI32, {kSlots, kMostTokens / 64}),
                   TensorView(const_cast<int32_t*>(live_), DType::kI32, {1})};
    args.pages = {
        TensorView(pages_.As<BF16>(), DType::kBF16, {pages, 64, kLatent}, {64 * width, kLatent, 1}),
        TensorView(pages_.As<BF16>() + 64 * kLatent, DType::kBF16, {pages, 64, kRope},
                   {64 * width, kRope, 1}),
        {}};
    OpContext context = {device_.stream(), {}};
    RotateAndCacheCuda(context, args);
  }
  QuantizeTokensParams Quantize(int64_t token, const QuantizedOut& out) const {
    return {.x = x_.As<__nv_bfloat16>() + token * s_.hidden,
            .stride = s_.hidden,
            .capacity = tokens_,
            .channels = s_.hidden,
            .live = live_,
            .out = out};
  }
  void Gather(int64_t token, cudaStream_t stream) {
    LaunchGatherPairs({.x = x_.As<__nv_bfloat16>() + token * s_.hidden,
                       .stride = s_.hidden,
                       .places = places_,
                       .live = live_,
                       .tokens = tokens_,
                       .topk = static_cast<int32_t>(s_.topk()),
                       .hidden = s_.hidden,
                       .x_of_pairs = pairs_.As<__nv_bfloat16>() + token * s_.topk() * s_.hidden},
                      stream);
  }
  void Combine(int64_t token, cudaStream_t stream) {
    LaunchCombine({.y = pairs_.As<__nv_bfloat16>() + token * s_.topk() * s_.hidden,
                   .places = places_,
                   .weights = weights_.As<float>() + token * s_.topk(),
                   .live = live_,
                   .tokens = tokens_,
                   .topk = static_cast<int32_t>(s_.topk()),
                   .hidden = s_.hidden,
                   .out = out_.As<__nv_bfloat16>() + token * s_.hidden},
                  {}, stream);
  }
  void Sort(cudaStream_t stream) {
    LaunchSortPairs({.ids = ids_,
                     .live = live_,
                     .tokens = tokens_,
                     .topk = static_cast<int32_t>(s_.topk()),
                     .experts = static_cast<int32_t>(s_.experts + s_.shared),
                     .counts = counts_.As<int32_t>(),
                     .begins = counts_.As<int32_t>() + 512,
                     .places = sorted_.As<int32_t>(),
                     .on_hopper = true},
                    stream);
  }

  // Each expert's places are those of the host's sort, in any order.
  bool SortIsRight(const Routes& routes) {
    std::vector<int32_t> got(routes.ids.size()), pair_at(routes.ids.size(), -1);
    BENCH_CHECK(
        cudaMemcpy(got.data(), sorted_.As<int32_t>(), got.size() * 4, cudaMemcpyDeviceToHost));
    std::vector<int32_t> id_at(got.size(), -1);
    for (size_t i = 0; i < got.size(); ++i) id_at[routes.places[i]] = routes.ids[i];
    bool right = true;
    for (size_t i = 0; i < got.size() && right; ++i) {
      right = got[i] >= 0 && got[i] < static_cast<int32_t>(got.size()) && pair_at[got[i]] < 0 &&
              id_at[got[i]] == routes.ids[i];
      if (right) pair_at[got[i]] = static_cast<int32_t>(i);
    }
    if (!right) std::printf("FAILED: %s, sort of %d tokens\n", s_.name, static_cast<int>(tokens_));
    return right;
  }

  // `launch` is of `tokens_` tokens from a token on.
  template <class F>
  void Time(const char* name, int64_t bytes, const std::vector<Output>& outputs, const F& launch) {
    uint64_t seed = 1;
    for (Memory* memory : {&x_, &residual_, &q_, &kv_, &cos_sin_, &weight_, &weights_}) {
      Randomize(memory->array, seed++);
    }
    if (std::strcmp(name, "sum over experts") == 0) Randomize(pairs_.array, seed);
    BENCH_CHECK(cudaMemset(sum_.get(), 0, 8));
    for (const Output& output : outputs) {
      if (output.data == q_.As<void>() || output.data == residual_.As<void>()) continue;
      BENCH_CHECK(cudaMemset(output.data, 0xff, output.bytes));
    }
    BENCH_CHECK(cudaDeviceSynchronize());
    const cudaStream_t stream = device_.stream().get();
    launch(0, stream);
    BENCH_CHECK(cudaStreamSynchronize(stream));
    for (const Output& output : outputs) {
      SumOfBits<<<1056, 256>>>(static_cast<const uint32_t*>(output.data), output.bytes / 4,
                               sum_.get());
    }
    BENCH_CHECK(cudaDeviceSynchronize());
    const auto launches = static_cast<int>(std::min<int64_t>(kMostLaunches, kAllTokens / tokens_));
    const double us = MedianMicroseconds(
        launches, kReplays, [&](int i, cudaStream_t s) { launch(i * tokens_, s); }, stream);
    const double rate = 1e-3 * static_cast<double>(bytes) / us;
    std::printf("%-8s %-20s %4d tokens %9.2f us %7.1f GB/s %5.2f of copy  bits %08" PRIx64 "\n",
                s_.name, name, static_cast<int>(tokens_), us, rate, rate / copy_,
                static_cast<uint64_t>(sum_.ToHost()[0]) & 0xffffffff);
  }

  CudaDevice& device_;
  const Shape& s_;
  const double copy_;
  Memory x_, residual_, out_, codes_, scales_, weight_, q_, kv_, pages_, cos_sin_;
  Memory pairs_, pair_codes_, pair_scales_, weights_, sorted_, counts_;
  DeviceArray<unsigned long long> sum_;
  std::unique_ptr<DeviceArray<int32_t>> slots_, positions_, table_;
  int64_t tokens_ = 0;
  const int32_t *live_ = nullptr, *ids_ = nullptr, *places_ = nullptr;
};

int Main() {
  const auto device = CudaDevice::Open(0);
  if (!device.ok()) return std::fprintf(stderr, "%s\n", device.status().message().c_str()), 1;
  const Bandwidth limits = MeasureBandwidth();
  std::printf("copy %.0f GB/s, read %.0f GB/s\n", limits.copy, limits.read);
  bool right = true;
  for (const Shape& s : kShapes) {
    Passes passes(**device, s, limits.copy);
    for (const int64_t tokens : {1, 8, 128, 4096}) right &= passes.Run(tokens);
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace fathom::bench

int main() {
  return fathom::bench::Main();
}
