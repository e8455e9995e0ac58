// Ranks on several GPUs of one host, or on one: sums and gathers of every size, the same bits on
// all of them.
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>

#include "base/rng.h"
#include "ops/ops.h"
#include "parallel/on_ranks.h"
#include "tests/gpu/test_peers.h"

namespace fathom {
namespace {

// On one GPU ranks send no packets: these have a test of their own (one_launch_test.cc), and here
// only messages that are too large for packets.
class PeerRanksTest : public PeersTest {};
INSTANTIATE_TEST_SUITE_P(Linked, PeerRanksTest, testing::Values(0));
INSTANTIATE_TEST_SUITE_P(OneGpu, PeerRanksTest, testing::Values(2, 3, 8));

// Part of rank `rank` in round `round`: BF16 numbers of very different sizes, so that another order
// of sums has other bits.
std::vector<BF16> Part(int rank, uint64_t round, int64_t n) {
  Rng rng(round, static_cast<uint64_t>(rank));
  std::vector<BF16> part;
  for (int64_t i = 0; i < n; ++i) {
    part.push_back(ToBF16(rng.Normal() * (i % 3 == rank % 3 ? 1e3f : 1e-2f)));
  }
  return part;
}

std::vector<float> SumOfParts(int ranks, uint64_t round, int64_t n) {
  std::vector<float> sum(static_cast<size_t>(n));
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<BF16> part = Part(rank, round, n);
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] = rank == 0 ? ToFloat(part[i]) : sum[i] + ToFloat(part[i]);
    }
  }
  for (float& x : sum) x = ToFloat(ToBF16(x));
  return sum;
}

TEST_P(PeerRanksTest, AllReduceNormInBothFormsIsTheSumInTheOrderOfRanks) {
  // Of 7168 numbers: the forms meet between 73 and 74 tokens; a round of the large one has 1170.
  constexpr int64_t kWidth = 7168;
  const auto sizes = one_gpu() ? std::vector<int64_t>{74, 1200}
                               : std::vector<int64_t>{1, 3, 72, 73, 74, 75, 1200, 2400};
  for (const int64_t tokens : sizes) {
    const auto sum = SumOfParts(count(), 7, tokens * kWidth);
    for (const int64_t live : {tokens, tokens / 2, int64_t{0}}) {
      ASSERT_TRUE(OnRanks(count(), [&](int rank) -> Status {
                    CudaDevice& device = peers_->device(rank);
                    device.BindThread();
                    const Ops& ops = CudaPortableOps(Fp8Activations::kExact);
                    const auto x_memory = device.Allocate(tokens * kWidth * 2);
                    const auto residual_memory = device.Allocate(tokens * kWidth * 4);
                    const auto out_memory = device.Allocate(tokens * kWidth * 2);
                    const auto weight_memory = device.Allocate(kWidth * 4);
                    const auto live_memory = device.Allocate(4);
                    const TensorView x(x_memory->data(), DType::kBF16, {tokens, kWidth});
                    const TensorView r(residual_memory->data(), DType::kF32, {tokens, kWidth});
                    const TensorView out(out_memory->data(), DType::kBF16, {tokens, kWidth});
                    const TensorView weight(weight_memory->data(), DType::kF32, {kWidth});
                    const TensorView n(live_memory->data(), DType::kI32, {1});
                    const AllReduceNormArgs args = {
                        .norm = {.x = x, .residual = r, .weight = weight, .live = n, .out = out},
                        .begins = true,
                        .ranks = &peers_->of(rank)};
                    const size_t bytes = ops.all_reduce_norm.Workspace(device.stream(), args);
                    const auto workspace = device.Allocate(bytes);
                    const std::vector<BF16> part = Part(rank, 7, tokens * kWidth);
                    device.Upload(x, std::as_bytes(std::span(part)));
                    const auto count32 = static_cast<int32_t>(live);
                    device.Upload(n, std::as_bytes(std::span(&count32, 1)));
                    device.stream().Synchronize();
                    OpContext context{device.stream(), {workspace->data(), bytes}};
                    ops.all_reduce_norm(context, args);
                    std::vector<float> got(static_cast<size_t>(tokens * kWidth));
                    device.Download(std::as_writable_bytes(std::span(got)), r);
                    device.stream().Synchronize();
                    for (size_t i = 0; i < got.size(); ++i) {
                      const float expected = i < static_cast<size_t>(live * kWidth) ? sum[i] : 0;
                      if (got[i] != expected) {
                        return Internal("rank {}, {} of {} tokens: number {} is {}, not {}", rank,
                                        live, tokens, i, got[i], expected);
                      }
                    }
                    return device.status();
                  }).ok());
    }
  }
}

template <class T>
void Upload(CudaDevice& device, const TensorView& to, const std::vector<T>& numbers) {
  device.Upload(to, std::as_bytes(std::span(numbers)));
  device.stream().Synchronize();
}

// What a rank has of the logits that RandomRounds gathers, and number i of all ranks'.
float PieceNumber(int rank, int64_t i) {
  return static_cast<float>(rank) + static_cast<float>(i % 977);
}
std::vector<float> Piece(int rank, int64_t n) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < n; ++i) numbers.push_back(PieceNumber(rank, i));
  return numbers;
}
float GatheredNumber(int ranks, int64_t vocab, int64_t i) {
  const int64_t token = i / vocab, column = i % vocab;
  for (int rank = 0; rank < ranks; ++rank) {
    const Share share = ShareOf(vocab, ShareUnit(vocab, ranks), ranks, rank);
    if (column < share.begin || column >= share.end) continue;
    return PieceNumber(rank, token * share.size() + column - share.begin);
  }
  return 0;
}

// Compares the numbers of `live` tokens, [tokens, width], with expected(i).
template <class Expected>
Status Compare(CudaDevice& device, const TensorView& numbers, int64_t live,
               const Expected& expected) {
  std::vector<float> got(static_cast<size_t>(numbers.elements()));
  device.Download(std::as_writable_bytes(std::span(got)), numbers);
  device.stream().Synchronize();
  for (int64_t i = 0; i < live * numbers.dim(1); ++i) {
    if (const float number = got[static_cast<size_t>(i)]; number != expected(i)) {
      return Internal("number {} of {} live tokens is {}, not {}", i, live, number, expected(i));
    }
  }
  return Status();
}

// Sizes, forms and ops in a random order, without waiting for any: what a step would do.
TEST_P(PeerRanksTest, RandomRounds) {
  constexpr int64_t kMostTokens = 256, kVocab = 5000;
  const int64_t width = one_gpu() ? 8192 : 2048, fewest = one_gpu() ? 65 : 1;  // above the packets
  const int rounds = one_gpu() ? 20 : 10'000, looks_each = one_gpu() ? 1 : 500;
  std::atomic<int> checked{0};
  const Status all = OnRanks(count(), [&](int rank) -> Status {
    CudaDevice& device = peers_->device(rank);
    device.BindThread();
    const Ops& ops = CudaPortableOps(Fp8Activations::kExact);
    const Share share = ShareOf(kVocab, ShareUnit(kVocab, count()), count(), rank);
    const auto part_memory = device.Allocate(kMostTokens * width * 2);
    const auto residual_memory = device.Allocate(kMostTokens * width * 4);
    const auto out_memory = device.Allocate(kMostTokens * width * 2);
    const auto weight_memory = device.Allocate(width * 4);
    const auto live_memory = device.Allocate(4 * (kMostTokens + 1));
    const auto share_memory = device.Allocate(kMostTokens * share.size() * 4);
    const auto gathered_memory = device.Allocate(kMostTokens * kVocab * 4);
    const auto workspace = device.Allocate(kMostTokens * width * 2);
    const auto of = [](const auto& memory, DType type, int64_t n, int64_t width) {
      return TensorView(memory->data(), type, {n, width});
    };
    std::vector<int32_t> counts;
    for (int32_t n = 0; n <= kMostTokens; ++n) counts.push_back(n);
    const TensorView lives(live_memory->data(), DType::kI32, {kMostTokens + 1});
    Upload(device, lives, counts);
    Upload(device, of(part_memory, DType::kBF16, kMostTokens, width),
           Part(rank, 1, kMostTokens * width));
    Upload(device, of(share_memory, DType::kF32, kMostTokens, share.size()),
           Piece(rank, kMostTokens * share.size()));
    const std::vector<float> sum = SumOfParts(count(), 1, kMostTokens * width);
    OpContext context{device.stream(), {workspace->data(), workspace->size()}};
    Rng rng(5, 5);  // the same on all ranks
    for (int round = 0; round < rounds; ++round) {
      const auto tokens = static_cast<int64_t>(fewest + rng.Next() % (kMostTokens + 1 - fewest));
      const auto live = static_cast<int64_t>(rng.Next() % (tokens + 1));
      const TensorView n = lives.Slice(0, live, live + 1);
      const bool gathers = rng.Next() % 8 == 0, looks = rng.Next() % looks_each == 0;
      const TensorView residual = of(residual_memory, DType::kF32, tokens, width);
      const TensorView gathered = of(gathered_memory, DType::kF32, tokens, kVocab);
      if (gathers) {
        ops.all_gather(context, {.x = of(share_memory, DType::kF32, tokens, share.size()),
                                 .live = n,
                                 .out = gathered,
                                 .unit = ShareUnit(kVocab, count()),
                                 .ranks = &peers_->of(rank)});
      } else {
        ops.all_reduce_norm(
            context, {.norm = {.x = of(part_memory, DType::kBF16, tokens, width),
                               .residual = residual,
                               .weight = TensorView(weight_memory->data(), DType::kF32, {width}),
                               .live = n,
                               .out = of(out_memory, DType::kBF16, tokens, width)},
                      .begins = true,
                      .ranks = &peers_->of(rank)});
      }
      if (!looks) continue;
      ++checked;
      const Status same = Compare(device, gathers ? gathered : residual, live, [&](int64_t i) {
        return gathers ? GatheredNumber(count(), kVocab, i) : sum[static_cast<size_t>(i)];
      });
      if (!same.ok()) return Internal("rank {}, round {}: {}", rank, round, same.message());
    }
    device.stream().Synchronize();
    return device.status();
  });
  EXPECT_TRUE(all.ok()) << all.message();
  EXPECT_GT(checked, 10);
}

}  // namespace
}  // namespace fathom
