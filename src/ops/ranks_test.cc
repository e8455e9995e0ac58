// Ops of several ranks, each a thread with a stream of its own, as CPU ranks are.
#include <gtest/gtest.h>

#include <thread>

#include "cpu/cpu_stream.h"
#include "ops/testing.h"
#include "parallel/shared_memory.h"

namespace fathom {
namespace {

std::vector<const Ops*> Tables() {
  return {&ReferenceOps(Fp8Activations::kExact), &CpuOps(Fp8Activations::kExact)};
}

// Calls body(rank, communicator, context) on a thread for each of `ranks`.
template <class Body>
void OnRanks(int ranks, const Body& body) {
  const auto group = SharedMemoryCommunicator::Group(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      CpuStream stream(rank % 2 + 1);
      OpContext context{stream, {}};
      body(rank, group[static_cast<size_t>(rank)].get(), context);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

struct Reduced {
  std::vector<float> out, residual;
};

// What each rank has after all_reduce_norm of `tokens` of the ranks' parts.
std::vector<Reduced> AllReduceNorm(const Ops& ops, const std::vector<std::vector<float>>& parts,
                                   const std::vector<float>& residual, int width,
                                   const std::vector<int>& tokens, bool begins) {
  std::vector<Reduced> results(parts.size());
  const TestTensor weight(DType::kF32, {width}, Normals(width, 9));
  OnRanks(static_cast<int>(parts.size()), [&](int rank, Communicator* ranks, OpContext& context) {
    const auto live = static_cast<int64_t>(tokens.size());
    const auto at = static_cast<size_t>(rank);
    const TestTensor x(DType::kF32, {live + 2, width}, PickVectors(parts[at], width, tokens));
    const TestTensor r(DType::kF32, {live + 2, width}, PickVectors(residual, width, tokens));
    const TestTensor out(DType::kF32, {live + 2, width}), count = Live(static_cast<int32_t>(live));
    ops.all_reduce_norm(
        context,
        {.norm = {.x = x, .residual = r, .weight = weight, .eps = 1e-5f, .live = count, .out = out},
         .begins = begins,
         .ranks = ranks});
    EXPECT_TRUE(out.PoisonedFrom(live));
    results[at] = {.out = out.Floats(), .residual = r.Floats()};
    results[at].out.resize(static_cast<size_t>(live * width));
    results[at].residual.resize(static_cast<size_t>(live * width));
  });
  return results;
}

TEST(RanksTest, AllReduceNormIsTheNormOfTheSumInTheOrderOfRanks) {
  constexpr int kWidth = 65, kTokens = 9;
  for (const Ops* ops : Tables()) {
    for (const int ranks : {1, 2, 3, 4}) {
      std::vector<std::vector<float>> parts;
      for (int r = 0; r < ranks; ++r) {
        // Of sizes so different that another order of sums has other bits.
        parts.push_back(Normals(kTokens * kWidth, 20 + r, r % 2 == 0 ? 1e4f : 1e-3f));
      }
      const std::vector<float> residual = Normals(kTokens * kWidth, 3);
      for (const bool begins : {false, true}) {
        const auto results = AllReduceNorm(*ops, parts, residual, kWidth, Range(kTokens), begins);
        std::vector<float> sums;
        for (size_t i = 0; i < residual.size(); ++i) {
          float sum = parts[0][i];
          for (int r = 1; r < ranks; ++r) sum += parts[static_cast<size_t>(r)][i];
          sums.push_back(begins ? sum : residual[i] + sum);
        }
        const TestTensor x(DType::kF32, {kTokens, kWidth}, sums),
            out(DType::kF32, {kTokens, kWidth});
        RunOp(TestBackend{ops, 1}, &Ops::rms_norm,
              {.x = x,
               .weight = TestTensor(DType::kF32, {kWidth}, Normals(kWidth, 9)),
               .eps = 1e-5f,
               .live = Live(kTokens),
               .out = out});
        for (const Reduced& result : results) {
          ExpectSameBits(result.residual, sums);
          ExpectSameBits(result.out, out.Floats());
        }
      }
    }
  }
}

TEST(RanksTest, ATokenOfAllReduceNormDoesNotDependOnOthers) {
  constexpr int kWidth = 33, kTokens = 40;
  const std::vector<std::vector<float>> parts = {Normals(kTokens * kWidth, 1),
                                                 Normals(kTokens * kWidth, 2)};
  const std::vector<float> residual = Normals(kTokens * kWidth, 3);
  for (const Ops* ops : Tables()) {
    ExpectTokenInvariance(kTokens, kWidth, [&](const std::vector<int>& tokens) {
      return AllReduceNorm(*ops, parts, residual, kWidth, tokens, false)[1].out;
    });
  }
}

TEST(RanksTest, NanOfOneRankStaysInItsToken) {
  std::vector<std::vector<float>> parts = {Normals(3 * 16, 1), Normals(3 * 16, 2)};
  parts[1][16] = NAN;
  for (const Ops* ops : Tables()) {
    const auto results = AllReduceNorm(*ops, parts, Normals(3 * 16, 3), 16, Range(3), false);
    for (const Reduced& result : results) {
      for (size_t i = 0; i < 48; ++i) EXPECT_EQ(std::isnan(result.out[i]), i / 16 == 1);
    }
  }
}

TEST(RanksTest, AllGatherPutsSharesSideBySide) {
  for (const Ops* ops : Tables()) {
    for (const int ranks : {1, 2, 3}) {
      for (const int live : {0, 1, 3}) {
        constexpr int kWidth = 7 * 16 + 5, kUnit = 16;
        const std::vector<float> whole = Normals(4 * kWidth, 5);
        OnRanks(ranks, [&](int rank, Communicator* group, OpContext& context) {
          const Share share = ShareOf(kWidth, kUnit, ranks, rank);
          std::vector<float> mine;
          for (int t = 0; t < 4; ++t) {
            mine.insert(mine.end(), &whole[t * kWidth + share.begin],
                        &whole[t * kWidth] + share.end);
          }
          const TestTensor x(DType::kF32, {4, share.size()}, mine), out(DType::kF32, {4, kWidth});
          const TestTensor count = Live(live);
          ops->all_gather(context,
                          {.x = x, .live = count, .out = out, .unit = kUnit, .ranks = group});
          EXPECT_TRUE(out.PoisonedFrom(live));
          std::vector<float> got = out.Floats();
          got.resize(static_cast<size_t>(live * kWidth));
          ExpectSameBits(got, {whole.begin(), whole.begin() + live * kWidth});
        });
      }
    }
  }
}

// Each id is in one rank's part, and the sum of all parts is the whole table's result.
TEST(RanksTest, EmbeddingsOfPartsOfTheVocabulary) {
  constexpr int kVocab = 37, kHidden = 24;
  const std::vector<float> table = Normals(kVocab * kHidden, 1);
  const TestTensor ids = Ints({5}, {36, 0, 16, 15, 31});
  for (const Ops* ops : Tables()) {
    std::vector<float> sum(5 * kHidden);
    for (int rank = 0; rank < 3; ++rank) {
      const Share share = ShareOf(kVocab, 16, 3, rank);
      const TestTensor part(
          DType::kBF16, {share.size(), kHidden},
          {table.begin() + share.begin * kHidden, table.begin() + share.end * kHidden});
      const TestTensor out(DType::kF32, {5, kHidden});
      RunOp(TestBackend{ops, 1}, &Ops::embed,
            {.ids = ids,
             .table = part,
             .live = Live(5),
             .out = out,
             .first = share.begin,
             .vocab = kVocab});
      const std::vector<float> got = out.Floats();
      for (size_t i = 0; i < sum.size(); ++i) {
        EXPECT_TRUE(got[i] == 0 || sum[i] == 0);
        sum[i] += got[i];
      }
    }
    ExpectSameBits(sum, PickVectors(table, kHidden, {36, 0, 16, 15, 31}));
  }
}

}  // namespace
}  // namespace fathom
