// Checks of the FP8 product, the quantisation and the experts against references: exit 1 and a line
// for each failure.
//
//     fp8_gemm_check dense|large|tiles|one|grouped|silu|quantize|few|experts
#include <cmath>
#include <cstring>
#include <random>

#include "bench/fp8_check.cuh"
#include "bench/fp8_gemm_problem.cuh"
#include "ops/moe_experts/grouped_gemm_cuda.h"
#include "quant/e4m3.h"

namespace fathom::bench {
namespace {

std::vector<float> ToFloats(const DeviceArray<__nv_bfloat16>& array) {
  std::vector<float> values;
  for (const __nv_bfloat16 x : array.ToHost()) {
    uint16_t bits;
    std::memcpy(&bits, &x, 2);
    values.push_back(FromBf16(bits));
  }
  return values;
}
// |out - ref| / |ref| over tokens that are live; the others must still be poisoned.
double Error(const std::vector<float>& out, const std::vector<float>& ref, int64_t width,
             const std::vector<bool>& live) {
  double difference = 0, norm = 1e-30;
  for (size_t i = 0; i < out.size(); ++i) {
    if (live[i / width]) {
      difference += std::pow(static_cast<double>(out[i]) - ref[i], 2);
      norm += std::pow(static_cast<double>(ref[i]), 2);
    } else if (!std::isnan(out[i])) {
      std::printf("token %zu was written\n", i / width);
      return NAN;
    }
  }
  return std::sqrt(difference / norm);
}

// Tiles that give a product's bits; without batch invariance, those of one chain.
std::vector<NamedTile> TilesOf(const Fp8Weights& w, bool batch_invariant = true) {
  std::vector<NamedTile> tiles;
  for (const NamedTile& named : kTiles) {
    if (batch_invariant ? Suits(named.tile, w) : named.tile < Fp8Tile::k64x64Chains) {
      tiles.push_back(named);
    }
  }
  return tiles;
}

// Groups of tokens with these counts, one behind the other or `capacity` apart.
struct Groups {
  Groups(const std::vector<int32_t>& counts_, bool sorted, int64_t capacity_)
      : host_counts(counts_), capacity(capacity_), counts(counts_), begins(Begins(counts_)) {
    tokens = sorted ? 0 : static_cast<int64_t>(counts_.size()) * capacity;
    if (sorted) {
      for (const int32_t count : counts_) tokens += count;
      tokens = std::max<int64_t>(tokens, 1);
    }
    live.assign(tokens, false);
    const std::vector<int32_t> starts = Begins(counts_);
    for (size_t g = 0; g < counts_.size(); ++g) {
      for (int32_t i = 0; i < counts_[g]; ++i) {
        live[(sorted ? starts[g] : static_cast<int64_t>(g) * capacity) + i] = true;
      }
    }
    groups = {
        .counts = counts.get(), .begins = sorted ? begins.get() : nullptr, .capacity = capacity};
  }
  static std::vector<int32_t> Begins(const std::vector<int32_t>& counts) {
    std::vector<int32_t> begins(counts.size());
    for (size_t i = 1; i < counts.size(); ++i) begins[i] = begins[i - 1] + counts[i - 1];
    return begins;
  }
  std::vector<int32_t> host_counts;
  int64_t capacity, tokens;
  DeviceArray<int32_t> counts, begins;
  std::vector<bool> live;
  Fp8TokenGroups groups;
};

std::vector<float> ReferenceOf(const TokensData& x, const WeightsData& w, const Groups& groups) {
  DeviceArray<float> out(x.capacity * w.parts * w.part_out);
  Poison(out);
  Reference(x.tokens(), w.weights(), groups.groups, groups.capacity, 1, out.get());
  return out.ToHost();
}

std::vector<float> ProductF32(const TokensData& x, const Fp8Weights& w, const Groups& groups,
                              Fp8Tile tile, bool batch_invariant = true) {
  DeviceArray<float> out(x.capacity * w.parts * w.part_out);
  Poison(out);
  LaunchFp8Gemm({.x = x.tokens(),
                 .w = w,
                 .groups = groups.groups,
                 .out = out.get(),
                 .out_stride = w.parts * w.part_out,
                 .output = Fp8GemmOutput::kF32,
                 .batch_invariant = batch_invariant,
                 .tile = tile},
                nullptr);
  BENCH_CHECK(cudaGetLastError());
  BENCH_CHECK(cudaDeviceSynchronize());
  return out.ToHost();
}
std::vector<float> ProductBf16(const TokensData& x, const WeightsData& w, const Groups& groups,
                               Fp8Tile tile) {
  DeviceArray<__nv_bfloat16> out(x.capacity * w.parts * w.part_out);
  Poison(out);
  LaunchFp8Gemm({.x = x.tokens(),
                 .w = w.weights(),
                 .groups = groups.groups,
                 .out = out.get(),
                 .out_stride = w.parts * w.part_out,
                 .tile = tile},
                nullptr);
  BENCH_CHECK(cudaGetLastError());
  BENCH_CHECK(cudaDeviceSynchronize());
  return ToFloats(out);
}

struct Shape {
  int64_t parts, part_out, in;
};
std::string Name(const char* what, int64_t tokens, const Shape& s) {
  return std::string(what) + " M " + std::to_string(tokens) + " N " + std::to_string(s.parts) +
         "x" + std::to_string(s.part_out) + " K " + std::to_string(s.in);
}

// The tile that each shape gets, at every count of tokens, in a capacity that leaves some dead.
void CheckDense() {
  for (const Shape& s : {Shape{1, 576, 7168},
                         {1, 2112, 7168},
                         {1, 3648, 2048},
                         {2, 1408, 2048},
                         {2, 10944, 2048},
                         {1, 2048, 10944},
                         {1, 2048, 1408},
                         {1, 24576, 1536},
                         {1, 7168, 2048}}) {
    const WeightsData w(1, s.parts, s.part_out, s.in, 11);
    for (const int32_t tokens : {0, 1, 7, 63, 64, 65, 128, 130, 257}) {
      const TokensData x(tokens + 3, s.in, 21);
      const Groups groups({tokens}, false, tokens + 3);
      const std::vector<float> ref = ReferenceOf(x, w, groups);
      const int64_t width = s.parts * s.part_out;
      const double error =
          Error(ProductBf16(x, w, groups, Fp8Tile::kAuto), ref, width, groups.live);
      Expect(error < 2.5e-3, Name("dense bf16", tokens, s), error);
      if (tokens == 65) {
        const double exact =
            Error(ProductF32(x, w.weights(), groups, Fp8Tile::kAuto), ref, width, groups.live);
        Expect(exact < 5e-4, Name("dense f32", tokens, s), exact);
      }
    }
  }
}

// The large products' rasterisation: every 61st token.
void CheckLarge() {
  const Shape s = {1, 7168, 16384};
  const WeightsData w(1, s.parts, s.part_out, s.in, 17);
  const TokensData x(4096, s.in, 27);
  const Groups groups({4090}, false, 4096);
  DeviceArray<float> ref(4096 * s.part_out);
  Reference(x.tokens(), w.weights(), groups.groups, 4090, 61, ref.get());
  const std::vector<float> wanted = ref.ToHost();
  for (const auto& [tile, name] : TilesOf(w.weights())) {
    if (tile < Fp8Tile::k128x64) continue;  // tiles of 64 tokens, which come first
    const std::vector<float> out = ProductF32(x, w.weights(), groups, tile);
    double difference = 0, norm = 0;
    for (int64_t token = 0; token < 4090; token += 61) {
      for (int64_t i = token * s.part_out; i < (token + 1) * s.part_out; ++i) {
        difference += std::pow(static_cast<double>(out[i]) - wanted[i], 2);
        norm += std::pow(static_cast<double>(wanted[i]), 2);
      }
    }
    const double error = std::sqrt(difference / norm);
    Expect(error < 5e-4, Name(name, 4090, s), error);
  }
}

// Every tile gives the same bits, and so do fewer tokens.
void CheckTiles() {
  for (const Shape& s : {Shape{2, 1408, 2048},
                         {2, 1160, 10944},
                         {1, 7168, 128},
                         {3, 328, 384},
                         {2, 192, 1456},
                         {1, 1160, 10944},
                         {1, 2112, 7168},
                         {1, 3640, 2128}}) {
    const WeightsData w(1, s.parts, s.part_out, s.in, 12);
    const TokensData x(400, s.in, 22);
    const Groups all({390}, false, 400), some({77}, false, 400);
    const int64_t width = s.parts * s.part_out;
    const std::vector<float> ref = ReferenceOf(x, w, all);
    const std::vector<NamedTile> tiles = TilesOf(w.weights());
    const std::vector<float> first = ProductF32(x, w.weights(), all, tiles.back().tile);
    for (const auto& [tile, name] : tiles) {
      const std::vector<float> out = ProductF32(x, w.weights(), all, tile);
      const double error = Error(out, ref, width, all.live);
      Expect(error < 5e-4, Name(name, 390, s) + " against fp64", error);
      const bool same = std::memcmp(out.data(), first.data(), 390 * width * sizeof(float)) == 0;
      Expect(same, Name(name, 390, s) + " against the bits of " + tiles.back().name, !same);
      const std::vector<float> fewer = ProductF32(x, w.weights(), some, tile);
      const bool as_few =
          std::memcmp(fewer.data(), first.data(), 77 * width * sizeof(float)) == 0 &&
          std::isnan(fewer[77 * width]);
      Expect(as_few, Name(name, 77, s) + " against the bits of 390 tokens", !as_few);
      const double bf16 = Error(ProductBf16(x, w, all, tile), ref, width, all.live);
      Expect(bf16 < 2.5e-3, Name(name, 390, s) + " in bf16", bf16);
    }
  }
}

// Where invariance is given up kAuto adds up chains of 512 tokens, and one chain of more.
void CheckOneChain() {
  const Shape s = {1, 2112, 7168};
  const WeightsData w(1, s.parts, s.part_out, s.in, 12);
  for (const int32_t tokens : {512, 513}) {
    const TokensData x(tokens, s.in, 22);
    const Groups groups({tokens}, false, tokens);
    const std::vector<float> ref = ReferenceOf(x, w, groups);
    const std::vector<float> chains = ProductF32(x, w.weights(), groups, Fp8Tile::kAuto);
    const std::vector<float> any = ProductF32(x, w.weights(), groups, Fp8Tile::kAuto, false);
    Expect((any == chains) == (tokens == 512), Name("bits of chains", tokens, s), NAN);
    for (const auto& [tile, name] : TilesOf(w.weights(), false)) {
      const std::vector<float> out = ProductF32(x, w.weights(), groups, tile, false);
      const double error = Error(out, ref, s.part_out, groups.live);
      Expect(error < 5e-4, Name(name, tokens, s) + " in one chain", error);
      const bool same = tokens == 512 || out == any;
      Expect(same, Name(name, tokens, s) + " against the bits of one chain", !same);
    }
  }
}

const std::vector<int32_t> kRaggedCounts = {0, 1, 63, 64, 65, 0, 130, 257, 3, 0};

void CheckGrouped() {
  for (const Shape& s : {Shape{1, 1408, 512}, {1, 2048, 1408}, {2, 576, 640}}) {
    const WeightsData w(static_cast<int64_t>(kRaggedCounts.size()), s.parts, s.part_out, s.in, 13);
    for (const bool sorted : {true, false}) {
      const Groups groups(kRaggedCounts, sorted, 260);
      const TokensData x(groups.tokens, s.in, 23);
      const std::vector<float> ref = ReferenceOf(x, w, groups);
      for (const auto& [tile, name] : TilesOf(w.weights())) {
        const double error =
            Error(ProductBf16(x, w, groups, tile), ref, s.parts * s.part_out, groups.live);
        Expect(error < 2.5e-3, Name(sorted ? "sorted" : "masked", groups.tokens, s) + " " + name,
               error);
      }
    }
  }
}

// silu(gate) * up of the reference, quantised by QuantizeRun.
void CheckSilu() {
  for (const Shape& s : {Shape{2, 1408, 512}, {2, 2048, 7168}, {2, 10944, 2048}}) {
    const std::vector<int32_t> counts =
        s.part_out == 10944 ? std::vector<int32_t>{130} : std::vector<int32_t>{0, 65, 1, 257, 128};
    const WeightsData w(static_cast<int64_t>(counts.size()), 2, s.part_out, s.in, 14);
    for (const bool ue8m0 : {false, true}) {
      const Groups groups(counts, true, 260);
      TokensData x(groups.tokens, s.in, 24);
      const std::vector<float> ref = ReferenceOf(x, w, groups);
      const int64_t inter = s.part_out, pitch = Fp8ScalePitch(groups.tokens);
      std::vector<uint8_t> first;
      for (const auto tile :
           {Fp8SiluTile::k64x64Pair, Fp8SiluTile::k128x128, Fp8SiluTile::k128x128Pair}) {
        DeviceArray<uint8_t> codes(groups.tokens * inter);
        DeviceArray<float> scales(Runs(inter) * pitch);
        Poison(codes);
        Poison(scales);
        LaunchFp8GemmSilu({.x = x.tokens(),
                           .w = w.weights(),
                           .groups = groups.groups,
                           .out = codes.get(),
                           .out_scales = scales.get(),
                           .out_scale_pitch = pitch,
                           .scale_ue8m0 = ue8m0,
                           .tile = tile},
                          nullptr);
        BENCH_CHECK(cudaDeviceSynchronize());
        const std::vector<uint8_t> q = codes.ToHost();
        const std::vector<float> scale = scales.ToHost();
        if (first.empty()) first = q;
        Expect(q == first, Name("silu", groups.tokens, s) + ": the bits of a 64x64 pair",
               q != first);
        double difference = 0, norm = 1e-30;
        int64_t unequal = 0;
        std::vector<float> h(inter);
        for (int64_t token = 0; token < groups.tokens; ++token) {
          for (int64_t i = 0; i < inter; ++i) {
            const float gate = ref[token * 2 * inter + i], up = ref[token * 2 * inter + inter + i];
            h[i] = gate / (1 + std::exp(-gate)) * up;
          }
          for (int64_t run = 0; run < Runs(inter); ++run) {
            const int64_t size = std::min<int64_t>(128, inter - run * 128);
            uint8_t expected[128];
            const float its_scale =
                QuantizeRun({h.data() + run * 128, static_cast<size_t>(size)}, ue8m0, expected);
            for (int64_t i = 0; i < size; ++i) {
              const uint8_t code = q[token * inter + run * 128 + i];
              const double value = ToFloat(E4M3{code}) * scale[run * pitch + token];
              const double wanted = ToFloat(E4M3{expected[i]}) * its_scale;
              difference += (value - wanted) * (value - wanted);
              norm += wanted * wanted;
              unequal += code != expected[i];
            }
          }
        }
        const double error = std::sqrt(difference / norm);
        Expect(error < 1e-2,
               Name("silu", groups.tokens, s) + (ue8m0 ? " ue8m0" : "") + " tile " +
                   std::to_string(static_cast<int>(tile)) + ", " + std::to_string(unequal) +
                   " codes of " + std::to_string(groups.tokens * inter) + " differ",
               error);
      }
    }
  }
}

// QuantizeRun of tokens: codes into `to`, scales of the layout of Fp8Tokens.
void QuantizeOnHost(const std::vector<float>& x, int64_t tokens, int64_t width,
                    const TokensData& to) {
  std::vector<uint8_t> codes(tokens * width);
  std::vector<float> scales(Runs(width) * Fp8ScalePitch(tokens));
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t run = 0; run < Runs(width); ++run) {
      const int64_t begin = token * width + run * 128,
                    size = std::min<int64_t>(128, width - run * 128);
      scales[run * Fp8ScalePitch(tokens) + token] =
          QuantizeRun({x.data() + begin, static_cast<size_t>(size)}, false, codes.data() + begin);
    }
  }
  BENCH_CHECK(cudaMemcpy(to.codes.get(), codes.data(), codes.size(), cudaMemcpyHostToDevice));
  BENCH_CHECK(
      cudaMemcpy(to.scales.get(), scales.data(), scales.size() * 4, cudaMemcpyHostToDevice));
}

// out[t] = sum over j of weights[t, j] * down[e](silu(gate[e] x) * up[e] x), e = ids[t, j].
std::vector<float> ReferenceOfExperts(const std::vector<uint16_t>& x,
                                      const std::vector<int32_t>& ids,
                                      const std::vector<float>& weights, const WeightsData& gate_up,
                                      const WeightsData& down) {
  const int64_t hidden = gate_up.in, inter = down.in, tokens = x.size() / hidden;
  const int64_t pairs = ids.size(), topk = pairs / tokens;
  std::vector<int64_t> order(pairs);  // by expert
  for (int64_t i = 0; i < pairs; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return ids[a] < ids[b]; });
  std::vector<int32_t> counts(down.count);
  for (const int32_t id : ids) ++counts[id];
  const Groups groups(counts, true, pairs);
  std::vector<float> sorted_x(pairs * hidden);
  for (int64_t i = 0; i < pairs; ++i) {
    for (int64_t k = 0; k < hidden; ++k)
      sorted_x[i * hidden + k] = FromBf16(x[order[i] / topk * hidden + k]);
  }
  const TokensData q(pairs, hidden, 1), product_q(pairs, inter, 1);
  QuantizeOnHost(sorted_x, pairs, hidden, q);
  const std::vector<float> gates = ReferenceOf(q, gate_up, groups);
  std::vector<float> product(pairs * inter);
  for (int64_t i = 0; i < pairs; ++i) {
    for (int64_t k = 0; k < inter; ++k) {
      const float gate = gates[i * 2 * inter + k];
      product[i * inter + k] = gate / (1 + std::exp(-gate)) * gates[i * 2 * inter + inter + k];
    }
  }
  QuantizeOnHost(product, pairs, inter, product_q);
  const std::vector<float> y = ReferenceOf(product_q, down, groups);
  std::vector<float> ref(tokens * hidden);
  for (int64_t i = 0; i < pairs; ++i) {
    for (int64_t k = 0; k < hidden; ++k) {
      ref[order[i] / topk * hidden + k] += weights[order[i]] * y[i * hidden + k];
    }
  }
  return ref;
}

// The experts as a whole, against the composition in fp32 and fp64.
void CheckExperts() {
  const int64_t hidden = 2048, inter = 1408, experts = 24;
  const int32_t topk = 6;
  const WeightsData gate_up(experts, 2, inter, hidden, 15), down(experts, 1, hidden, inter, 16);
  for (const int32_t tokens : {1, 37, 300}) {
    std::mt19937 random(3);
    std::vector<int32_t> ids;
    std::vector<float> weights;
    for (int32_t t = 0; t < tokens; ++t) {
      std::vector<int32_t> all(experts - 1);  // the last expert has no token
      for (size_t e = 0; e < all.size(); ++e) all[e] = static_cast<int32_t>(e);
      std::shuffle(all.begin(), all.end(), random);
      ids.insert(ids.end(), all.begin(), all.begin() + topk);
      for (int j = 0; j < topk; ++j)
        weights.push_back(0.05f + static_cast<float>(random() % 100) / 200);
    }
    const std::vector<uint16_t> x = RandomBf16(tokens * hidden, false, 8);
    const std::vector<float> ref = ReferenceOfExperts(x, ids, weights, gate_up, down);
    const DeviceArray<uint16_t> device_x(x);
    const DeviceArray<int32_t> device_ids(ids), live(std::vector<int32_t>{tokens});
    const DeviceArray<float> device_weights(weights);
    const DeviceArray<__nv_bfloat16> out(tokens * hidden);
    Poison(out);
    Fp8ExpertsParams params = {.x = reinterpret_cast<const __nv_bfloat16*>(device_x.get()),
                               .x_stride = hidden,
                               .ids = device_ids.get(),
                               .weights = device_weights.get(),
                               .live = live.get(),
                               .tokens = tokens,
                               .topk = topk,
                               .gate_up = gate_up.weights(),
                               .down = down.weights(),
                               .out = out.get()};
    const DeviceArray<std::byte> workspace(Fp8ExpertsWorkspace(params));
    params.workspace = {workspace.get(), workspace.size()};
    Poison(workspace);
    LaunchFp8Experts(params, nullptr);
    BENCH_CHECK(cudaDeviceSynchronize());
    const double error = Error(ToFloats(out), ref, hidden, std::vector<bool>(tokens, true));
    Expect(error < 5e-3, "experts of " + std::to_string(tokens) + " tokens", error);
  }
}

}  // namespace
}  // namespace fathom::bench

int main(int argc, char** argv) {
  using namespace fathom::bench;
  const std::vector<Case> checks = {
      {"dense", CheckDense},       {"large", CheckLarge},     {"tiles", CheckTiles},
      {"one", CheckOneChain},      {"grouped", CheckGrouped}, {"silu", CheckSilu},
      {"quantize", CheckQuantize}, {"few", CheckFew},         {"experts", CheckExperts}};
  if (argc > 1) {
    if (!RunCase(argv[1], checks)) return 2;
  } else {
    for (const auto& [name, check] : checks) check();
  }
  std::printf("%d failures\n", failures);
  return failures > 0;
}
