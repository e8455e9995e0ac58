// Experts over several GPUs of one host, or over ranks on one: the bits of one GPU's moe_experts,
// and many rounds of what is exchanged.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cmath>

#include "ops/test_weights.h"
#include "parallel/on_ranks.h"
#include "tests/gpu/test_peers.h"

namespace fathom {
namespace {

constexpr int kRouted = 12, kShared = 1, kTopk = 4, kExperts = kTopk + kShared;  // of a token

class ExpertPeersTest : public PeersTest {};
INSTANTIATE_TEST_SUITE_P(Linked, ExpertPeersTest, testing::Values(0));
INSTANTIATE_TEST_SUITE_P(OneGpu, ExpertPeersTest, testing::Values(2, 3, 4));

// Tensors of one device.
class Memory {
 public:
  explicit Memory(CudaDevice& device) : device_(device) {}
  TensorView Make(DType type, std::initializer_list<int64_t> shape) {
    int64_t bytes = static_cast<int64_t>(ByteSize(type));
    for (const int64_t size : shape) bytes *= size;
    memory_.push_back(device_.Allocate(static_cast<size_t>(std::max<int64_t>(bytes, 64))));
    return TensorView(memory_.back()->data(), type, shape);
  }
  template <class T>
  TensorView Make(DType type, std::initializer_list<int64_t> shape, const std::vector<T>& values) {
    const TensorView view = Make(type, shape);
    device_.Upload(view, std::as_bytes(std::span(values)));
    device_.stream().Synchronize();
    return view;
  }

 private:
  CudaDevice& device_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
};

std::vector<BF16> ToBF16s(const std::vector<float>& x) {
  std::vector<BF16> result;
  for (const float value : x) result.push_back(ToBF16(value));
  return result;
}

// What a group's router said of its tokens.
struct Routing {
  Routing(int64_t tokens, uint64_t seed) {
    Rng rng(seed);
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<int> experts = Range(kRouted);
      for (int j = 0; j < kExperts; ++j) {
        if (j < kTopk) std::swap(experts[j], experts[j + rng.Below(kRouted - j)]);
        ids.push_back(j < kTopk ? experts[j] : kRouted);
        weights.push_back(j < kTopk ? rng.Uniform() * (j % 2 == 0 ? 100.0f : 0.01f) : 1);
      }
    }
  }
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

template <class Args>
void Enqueue(const Op<Args>& op, CudaDevice& device, const TensorView& workspace,
             const Args& args) {
  OpContext context{
      device.stream(),
      {static_cast<std::byte*>(workspace.data()), static_cast<size_t>(workspace.elements())}};
  CHECK(op.Workspace(device.stream(), args) <= context.workspace.size(), "a larger work space");
  op(context, args);
}

struct Weights {
  Weights(const Ops& ops, CudaDevice& device, const std::vector<TestMatrix>& matrices, Share of) {
    std::vector<WeightSource> up, out;
    const auto add = [&](size_t e) {
      up.push_back({{matrices[3 * e].weight, matrices[3 * e + 1].weight}});
      out.push_back({{matrices[3 * e + 2].weight}});
    };
    for (int64_t e = of.begin; e < of.end; ++e) add(static_cast<size_t>(e));
    for (size_t s = kRouted; s < kRouted + kShared; ++s) add(s);
    gate_up = ops.pack(device.stream(), {.matrices = up}).value();
    down = ops.pack(device.stream(), {.matrices = out}).value();
  }
  std::unique_ptr<PackedWeight> gate_up, down;
};

struct Case {
  const Ops* ops;
  DType weights;
  int64_t hidden, inter, tokens;  // of a rank, the most
};

std::vector<BF16> OneGpu(const Case& c, CudaDevice& device, const std::vector<TestMatrix>& matrices,
                         int64_t live, uint64_t seed) {
  const Weights w(*c.ops, device, matrices, {0, kRouted});
  Memory memory(device);
  const Routing routing(live, seed);
  const TensorView out = memory.Make(DType::kBF16, {live, c.hidden});
  const MoeExpertsArgs args = {
      .x = memory.Make(DType::kBF16, {live, c.hidden}, ToBF16s(Normals(live * c.hidden, seed))),
      .ids = memory.Make(DType::kI32, {live, kExperts}, routing.ids),
      .weights = memory.Make(DType::kF32, {live, kExperts}, routing.weights),
      .gate_up = w.gate_up.get(),
      .down = w.down.get(),
      .live = memory.Make(DType::kI32, {1}, std::vector{static_cast<int32_t>(live)}),
      .out = out};
  const auto bytes = static_cast<int64_t>(c.ops->moe_experts.Workspace(device.stream(), args)) + 64;
  Enqueue(c.ops->moe_experts, device, memory.Make(DType::kU8, {bytes}), args);
  std::vector<BF16> result(static_cast<size_t>(live * c.hidden));
  device.Download(std::as_writable_bytes(std::span(result)), out);
  device.stream().Synchronize();
  return result;
}

// What a rank exchanges and computes.
struct RankTensors {
  RankTensors(const Case& c, CudaDevice& device, int ranks, int64_t live, uint64_t seed)
      : memory(device), pairs(ranks * c.tokens * kTopk + c.tokens * kShared) {
    const Routing routing(live, seed);
    std::vector<BF16> tokens = ToBF16s(Normals(live * c.hidden, seed));
    tokens.resize(static_cast<size_t>(c.tokens * c.hidden));
    std::vector<int32_t> all_ids = routing.ids;
    all_ids.resize(static_cast<size_t>(c.tokens * kExperts));
    std::vector<float> all_weights = routing.weights;
    all_weights.resize(all_ids.size());
    x = memory.Make(DType::kBF16, {c.tokens, c.hidden}, tokens);
    ids = memory.Make(DType::kI32, {c.tokens, kExperts}, all_ids);
    weights = memory.Make(DType::kF32, {c.tokens, kExperts}, all_weights);
    count = memory.Make(DType::kI32, {1}, std::vector{static_cast<int32_t>(live)});
    out = memory.Make(DType::kBF16, {c.tokens, c.hidden});
    pair_x = memory.Make(DType::kBF16, {pairs, c.hidden});
    pair_y = memory.Make(DType::kBF16, {pairs, c.hidden});
    pair_ids = memory.Make(DType::kI32, {pairs, 1});
    origin = memory.Make(DType::kI32, {pairs});
    pair_live = memory.Make(DType::kI32, {1});
    ones = memory.Make(DType::kF32, {pairs, 1}, std::vector<float>(static_cast<size_t>(pairs), 1));
  }
  Memory memory;
  int64_t pairs;
  TensorView x, ids, weights, count, out, pair_x, pair_y, pair_ids, origin, pair_live, ones;
};

void ExpectBitsOfOneGpu(const Case& c, TestPeers& peers) {
  const int ranks = peers.count();
  std::vector<TestMatrix> matrices;
  for (int e = 0; e < kRouted + kShared; ++e) {
    for (const auto& [out, in] :
         {std::pair{c.inter, c.hidden}, {c.inter, c.hidden}, {c.hidden, c.inter}}) {
      matrices.emplace_back(c.weights, out, in, 100 + matrices.size());
    }
  }
  std::barrier<> all(ranks);
  const Status status = OnRanks(ranks, [&](int rank) -> Status {
    const auto at = static_cast<size_t>(rank);
    CudaDevice& device = peers.device(rank);
    device.BindThread();
    const int64_t live = rank == 1 ? c.tokens / 3 : c.tokens;
    const std::vector<BF16> expected = OneGpu(c, device, matrices, live, 7 + at);
    const Weights w(*c.ops, device, matrices, ShareOf(kRouted, 1, ranks, rank));
    RankTensors t(c, device, ranks, live, 7 + at);
    const ExpertExchange exchange = {.ranks = &peers.of(rank), .routed = kRouted, .each = c.tokens};
    const MoeExpertsArgs experts = {.x = t.pair_x,
                                    .ids = t.pair_ids,
                                    .weights = t.ones,
                                    .gate_up = w.gate_up.get(),
                                    .down = w.down.get(),
                                    .live = t.pair_live,
                                    .out = t.pair_y};
    const auto bytes =
        static_cast<int64_t>(c.ops->moe_experts.Workspace(device.stream(), experts)) + 64;
    const TensorView workspace = t.memory.Make(DType::kU8, {bytes});
    all.arrive_and_wait();  // nothing is laid out while another waits
    Enqueue(c.ops->dispatch, device, workspace,
            {.x = t.x,
             .ids = t.ids,
             .live = t.count,
             .exchange = exchange,
             .pair_x = t.pair_x,
             .pair_ids = t.pair_ids,
             .pair_origin = t.origin,
             .pair_live = t.pair_live});
    Enqueue(c.ops->moe_experts, device, workspace, experts);
    Enqueue(c.ops->combine, device, workspace,
            {.pair_y = t.pair_y,
             .pair_origin = t.origin,
             .pair_live = t.pair_live,
             .exchange = exchange,
             .ids = t.ids,
             .weights = t.weights,
             .live = t.count,
             .out = t.out});
    std::vector<BF16> got(expected.size());
    device.Download(std::as_writable_bytes(std::span(got)), t.out.Slice(0, 0, live));
    device.stream().Synchronize();
    all.arrive_and_wait();  // nothing is freed either
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i].bits != expected[i].bits) {
        return Internal("rank {}: number {} is {}, of one GPU {}", rank, i, ToFloat(got[i]),
                        ToFloat(expected[i]));
      }
    }
    return device.status();
  });
  EXPECT_TRUE(status.ok()) << c.ops->name << " " << Name(c.weights) << " " << c.tokens << ": "
                           << status.message();
}

TEST_P(ExpertPeersTest, ATokenHasTheBitsOfOneGpu) {
  for (const auto mode : {Fp8Activations::kExact, Fp8Activations::kQuantized}) {
    std::vector<const Ops*> tables = {&CudaPortableOps(mode)};
    if (peers_->device(0).is_hopper()) tables.push_back(&CudaHopperOps(mode));
    for (const Ops* ops : tables) {
      for (const DType weights : {DType::kBF16, DType::kF8E4M3}) {
        for (const int64_t tokens : {3, 40, 300}) {
          ExpectBitsOfOneGpu({ops, weights, 256, 128, tokens}, *peers_);
        }
      }
    }
  }
  // Of 2048 channels a window holds 819 tokens with their pairs, and of two ranks 2,038 tokens.
  const Ops& ops = CudaOps(peers_->device(0), Fp8Activations::kQuantized);
  ExpectBitsOfOneGpu({&ops, DType::kF8E4M3, 2048, 128, 2500}, *peers_);
}

// What a token sums up to where each of its pairs comes back as it went.
BF16 SumOfPairs(const Routing& routing, size_t token, BF16 x) {
  float sum = 0;
  for (size_t j = 0; j < kExperts; ++j) {
    sum = std::fma(routing.weights[token * kExperts + j], ToFloat(x), sum);
  }
  return ToBF16(sum);
}

// Without experts each pair comes back as it went: 10,000 exchanges of random sizes, in pieces,
// none of which is waited for.
TEST_P(ExpertPeersTest, RandomRounds) {
  const int rounds = one_gpu() ? 20 : 10'000, looks_each = one_gpu() ? 1 : 100;
  constexpr int64_t kShifts = 64;
  const Case c{&CudaPortableOps(Fp8Activations::kExact), DType::kBF16, 512, 0, 160};
  std::atomic<int> checked{0};
  std::barrier<> all(count());
  const Status status = OnRanks(count(), [&](int rank) -> Status {
    const auto at = static_cast<size_t>(rank);
    CudaDevice& device = peers_->device(rank);
    device.BindThread();
    RankTensors t(c, device, count(), c.tokens, at);
    const Routing routing(c.tokens, at);
    // In each round other tokens, so that what is left of the last one shows.
    const std::vector<BF16> tokens = ToBF16s(Normals((c.tokens + kShifts) * c.hidden, 50 + at));
    const TensorView x = t.memory.Make(DType::kBF16, {c.tokens + kShifts, c.hidden}, tokens);
    const TensorView lives =
        t.memory.Make(DType::kI32, {c.tokens + 1}, Range(static_cast<int>(c.tokens) + 1));
    const TensorView workspace = t.memory.Make(DType::kU8, {64});
    device.stream().Synchronize();
    all.arrive_and_wait();
    Rng same(5, 5), own(6, at);
    for (int round = 0; round < rounds; ++round) {
      const int64_t each = 1 + same.Below(static_cast<uint32_t>(c.tokens));
      const int64_t live = own.Below(static_cast<uint32_t>(c.tokens) + 1);
      const int64_t shift = own.Below(kShifts);
      const TensorView n = lives.Slice(0, live, live + 1);
      ExpertExchange exchange = {.ranks = &peers_->of(rank), .routed = kRouted, .each = each};
      for (; exchange.first < c.tokens; exchange.first += each) {
        Enqueue(c.ops->dispatch, device, workspace,
                {.x = x.Slice(0, shift, shift + c.tokens),
                 .ids = t.ids,
                 .live = n,
                 .exchange = exchange,
                 .pair_x = t.pair_x,
                 .pair_ids = t.pair_ids,
                 .pair_origin = t.origin,
                 .pair_live = t.pair_live});
        Enqueue(c.ops->combine, device, workspace,
                {.pair_y = t.pair_x,
                 .pair_origin = t.origin,
                 .pair_live = t.pair_live,
                 .exchange = exchange,
                 .ids = t.ids,
                 .weights = t.weights,
                 .live = n,
                 .out = t.out});
      }
      if (same.Below(looks_each) != 0) continue;
      ++checked;
      std::vector<BF16> got(static_cast<size_t>(live * c.hidden));
      device.Download(std::as_writable_bytes(std::span(got)), t.out.Slice(0, 0, live));
      device.stream().Synchronize();
      for (size_t i = 0; i < got.size(); ++i) {
        const BF16 want = SumOfPairs(routing, i / static_cast<size_t>(c.hidden),
                                     tokens[static_cast<size_t>(shift * c.hidden) + i]);
        if (got[i].bits != want.bits) {
          peers_->of(rank).Abort();
          all.arrive_and_drop();
          return Internal("rank {}, round {}: number {} of {} live tokens is {}, not {}", rank,
                          round, i, live, ToFloat(got[i]), ToFloat(want));
        }
      }
    }
    device.stream().Synchronize();
    all.arrive_and_wait();
    return device.status();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_GT(checked, 10);
}

}  // namespace
}  // namespace fathom
