// dispatch, moe_experts and combine on ranks that are threads, as CPU ranks are, beside moe_experts
// of one rank.
#include <gtest/gtest.h>

#include <thread>

#include "cpu/cpu_stream.h"
#include "ops/test_weights.h"
#include "parallel/shared_memory.h"

namespace fathom {
namespace {

constexpr int kRouted = 10, kShared = 2, kTopk = 3, kHidden = 96, kInter = 64;
constexpr int kExperts = kTopk + kShared;  // of a token

// The experts of a layer, shared ones last.
struct Experts {
  explicit Experts(DType dtype) {
    for (int e = 0; e < kRouted + kShared; ++e) {
      for (const auto& [out, in] :
           {std::pair{kInter, kHidden}, {kInter, kHidden}, {kHidden, kInter}}) {
        matrices.emplace_back(dtype, out, in, 100 + matrices.size());
      }
    }
  }
  // Routed experts [begin, end) and the shared ones.
  std::vector<Parts> GateUp(int64_t begin, int64_t end) const {
    return Pick(begin, end, [&](size_t e) {
      return Parts{matrices[3 * e].weight, matrices[3 * e + 1].weight};
    });
  }
  std::vector<Parts> Down(int64_t begin, int64_t end) const {
    return Pick(begin, end, [&](size_t e) { return Parts{matrices[3 * e + 2].weight}; });
  }
  template <class Of>
  static std::vector<Parts> Pick(int64_t begin, int64_t end, const Of& of) {
    std::vector<Parts> picked;
    for (int64_t e = begin; e < end; ++e) picked.push_back(of(static_cast<size_t>(e)));
    for (size_t s = kRouted; s < kRouted + kShared; ++s) picked.push_back(of(s));
    return picked;
  }
  std::vector<TestMatrix> matrices;
};

// What a data-parallel group has: its live tokens, and what its router said of them.
struct Group {
  Group(int live, uint64_t seed) : live(live), x(Normals(live * kHidden, seed)) {
    Rng rng(seed);
    for (int t = 0; t < live; ++t) {
      std::vector<int> experts = Range(kRouted);
      for (int j = 0; j < kExperts; ++j) {
        if (j < kTopk) std::swap(experts[j], experts[j + rng.Below(kRouted - j)]);
        ids.push_back(j < kTopk ? experts[j] : kRouted + j - kTopk);
        // So different that another order of sums has other bits.
        weights.push_back(j < kTopk ? rng.Uniform() * (j % 2 == 0 ? 100.0f : 0.01f) : 1);
      }
    }
  }
  int live;
  std::vector<float> x, weights;
  std::vector<int32_t> ids;
};

struct Packed {
  Packed(const TestBackend& b, const Experts& e, int64_t begin, int64_t end)
      : gate_up(Pack(b, e.GateUp(begin, end))), down(Pack(b, e.Down(begin, end))) {}
  std::unique_ptr<PackedWeight> gate_up, down;
};

std::vector<float> OneRank(const TestBackend& b, const Packed& w, const Group& g) {
  TestTensor out(DType::kF32, {g.live, kHidden});
  RunOp(b, &Ops::moe_experts,
        {.x = TestTensor(DType::kF32, {g.live, kHidden}, g.x),
         .ids = Ints({g.live, kExperts}, g.ids),
         .weights = TestTensor(DType::kF32, {g.live, kExperts}, g.weights),
         .gate_up = w.gate_up.get(),
         .down = w.down.get(),
         .live = Live(g.live),
         .out = out});
  return out.Floats();
}

template <class Args>
void Run(const Op<Args>& op, CpuStream& stream, const Args& args) {
  std::vector<std::byte> memory(op.Workspace(stream, args) + 64);
  void* at = memory.data();
  size_t space = memory.size();
  std::align(64, memory.size() - 64, at, space);
  OpContext context{stream, {static_cast<std::byte*>(at), memory.size() - 64}};
  op(context, args);
}

// One rank's part of a layer's experts, `each` of its tokens at a time, with room for `capacity`.
std::vector<float> RankOfMany(const Ops& ops, const Packed& w, const Group& g, CpuStream& stream,
                              ExpertExchange exchange, int64_t capacity) {
  const int64_t pairs = exchange.ranks->size() * exchange.each * kTopk + exchange.each * kShared;
  const TestTensor x(DType::kF32, {capacity, kHidden}, g.x), live = Live(g.live);
  const TestTensor ids = Ints({capacity, kExperts}, g.ids);
  const TestTensor weights(DType::kF32, {capacity, kExperts}, g.weights);
  const TestTensor pair_x(DType::kF32, {pairs, kHidden}), pair_y(DType::kF32, {pairs, kHidden});
  const TestTensor pair_ids(DType::kI32, {pairs, 1}), origin(DType::kI32, {pairs});
  const TestTensor pair_live = Live(0), out(DType::kF32, {capacity, kHidden});
  const TestTensor ones(DType::kF32, {pairs, 1}, std::vector<float>(static_cast<size_t>(pairs), 1));
  for (; exchange.first < capacity; exchange.first += exchange.each * exchange.stride) {
    Run(ops.dispatch, stream,
        {.x = x,
         .ids = ids,
         .live = live,
         .exchange = exchange,
         .pair_x = pair_x,
         .pair_ids = pair_ids,
         .pair_origin = origin,
         .pair_live = pair_live});
    Run(ops.moe_experts, stream,
        {.x = pair_x,
         .ids = pair_ids,
         .weights = ones,
         .gate_up = w.gate_up.get(),
         .down = w.down.get(),
         .live = pair_live,
         .out = pair_y});
    Run(ops.combine, stream,
        {.pair_y = pair_y,
         .pair_origin = origin,
         .pair_live = pair_live,
         .exchange = exchange,
         .ids = ids,
         .weights = weights,
         .live = live,
         .out = out});
  }
  EXPECT_TRUE(out.PoisonedFrom(g.live));
  std::vector<float> result = out.Floats();
  result.resize(g.x.size());
  return result;
}

// `groups` of `tensor` ranks each; expects each group's sum over its ranks to be one rank's result.
void ExpectBitsOfOneRank(const TestBackend& b, DType dtype, const std::vector<int>& live,
                         int tensor, int64_t each) {
  const Experts experts(dtype);
  const int ranks = static_cast<int>(live.size()) * tensor;
  const int64_t capacity = *std::max_element(live.begin(), live.end()) + 2;
  const auto group = SharedMemoryCommunicator::Group(ranks);
  std::vector<Group> groups;
  for (size_t g = 0; g < live.size(); ++g) groups.emplace_back(live[g], 7 + g);
  std::vector<Packed> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    const Share share = ShareOf(kRouted, 1, ranks, rank);
    parts.emplace_back(b, experts, share.begin, share.end);
  }
  std::vector<std::vector<float>> results(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      CpuStream stream(rank % 2 + 1);
      const auto at = static_cast<size_t>(rank);
      results[at] = RankOfMany(*b.ops, parts[at], groups[at / static_cast<size_t>(tensor)], stream,
                               {.ranks = group[at].get(),
                                .routed = kRouted,
                                .each = each,
                                .stride = tensor,
                                .offset = rank % tensor},
                               capacity);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Packed all(b, experts, 0, kRouted);
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<float> sum = results[g * static_cast<size_t>(tensor)];
    for (int r = 1; r < tensor; ++r) {
      const std::vector<float>& part =
          results[g * static_cast<size_t>(tensor) + static_cast<size_t>(r)];
      for (size_t i = 0; i < sum.size(); ++i) {
        EXPECT_TRUE(sum[i] == 0 || part[i] == 0);
        sum[i] += part[i];
      }
    }
    ExpectSameBits(sum, OneRank(b, all, groups[g]));
  }
}

std::vector<TestBackend> Tables() {
  std::vector<TestBackend> tables;
  for (const auto mode : {Fp8Activations::kExact, Fp8Activations::kQuantized}) {
    tables.push_back({&ReferenceOps(mode), 1, mode});
    tables.push_back({&CpuOps(mode), 2, mode});
  }
  return tables;
}

TEST(ExpertRanksTest, ATokenHasTheBitsOfOneRankWhereverItsExpertsAre) {
  for (const TestBackend& b : Tables()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
      ExpectBitsOfOneRank(b, dtype, {7}, 1, 16);
      ExpectBitsOfOneRank(b, dtype, {9, 5}, 1, 16);
      ExpectBitsOfOneRank(b, dtype, {4, 0, 11}, 1, 13);   // a group is idle
      ExpectBitsOfOneRank(b, dtype, {6, 1, 3, 8}, 1, 4);  // in pieces
      ExpectBitsOfOneRank(b, dtype, {9, 6}, 2, 3);        // of two tensor-parallel ranks each
      ExpectBitsOfOneRank(b, dtype, {8}, 4, 2);
    }
  }
}

TEST(ExpertRanksDeathTest, ARankWithoutAnExpertOrATokenIsRefused) {
  const auto group = SharedMemoryCommunicator::Group(3);
  const auto view = [](DType type, std::initializer_list<int64_t> shape) {
    return TensorView(nullptr, type, shape);
  };
  const DispatchArgs good = {.x = view(DType::kF32, {4, 8}),
                             .ids = view(DType::kI32, {4, 2}),
                             .live = view(DType::kI32, {1}),
                             .exchange = {.ranks = group[1].get(), .routed = 3, .each = 4},
                             .pair_x = view(DType::kF32, {24, 8}),
                             .pair_ids = view(DType::kI32, {24, 1}),
                             .pair_origin = view(DType::kI32, {24}),
                             .pair_live = view(DType::kI32, {1})};
  Check(good);
  DispatchArgs args = good;
  args.exchange.routed = 2;
  EXPECT_DEATH(Check(args), "dispatch: 2 experts");
  args = good;
  args.exchange.offset = 1;
  EXPECT_DEATH(Check(args), "dispatch: 4 tokens from 0 on, 1 of 1");
  args = good;
  args.pair_x = view(DType::kBF16, {24, 8});
  EXPECT_DEATH(Check(args), "dispatch: pair_x is BF16 \\[24, 8\\], not F32 \\[24, 8\\]");
}

TEST(ExpertRanksTest, NoTokenAnywhere) {
  for (const TestBackend& b : Tables()) ExpectBitsOfOneRank(b, DType::kBF16, {0, 0}, 1, 3);
}

// The canary: were outputs summed in the order of ranks, as they arrive, bits would differ.
TEST(ExpertRanksTest, AnotherOrderOfSumsHasOtherBits) {
  const TestBackend b{&CpuOps(Fp8Activations::kExact), 1};
  const Experts experts(DType::kBF16);
  const Packed all(b, experts, 0, kRouted);
  const Group group(9, 7);
  Group sorted = group;  // by expert, and so by rank
  for (int t = 0; t < group.live; ++t) {
    std::vector<std::pair<int32_t, float>> pairs;
    for (int j = 0; j < kExperts; ++j) {
      pairs.emplace_back(group.ids[t * kExperts + j], group.weights[t * kExperts + j]);
    }
    std::sort(pairs.begin(), pairs.end());
    for (int j = 0; j < kExperts; ++j) {
      std::tie(sorted.ids[t * kExperts + j], sorted.weights[t * kExperts + j]) = pairs[j];
    }
  }
  EXPECT_NE(OneRank(b, all, sorted), OneRank(b, all, group));
}

}  // namespace
}  // namespace fathom
