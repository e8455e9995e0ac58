// Ranks on several GPUs of one host, or on one: sums and gathers of every size, the same bits on
// all of them.
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "ops/all_reduce_norm/sum_rounds.h"
#include "ops/ops.h"
#include "ops/testing.h"
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

template <class T>
void Upload(CudaDevice& device, const TensorView& to, const std::vector<T>& numbers) {
  device.Upload(to, std::as_bytes(std::span(numbers)));
  device.stream().Synchronize();
}

template <class T>
std::vector<T> Download(CudaDevice& device, const TensorView& from) {
  std::vector<T> numbers(static_cast<size_t>(from.elements()));
  device.Download(std::as_writable_bytes(std::span(numbers)), from);
  device.stream().Synchronize();
  return numbers;
}

std::vector<std::byte> Bytes(CudaDevice& device, const TensorView& from) {
  return Download<std::byte>(
      device, TensorView(from.data(), DType::kU8,
                         {from.elements() * static_cast<int64_t>(ByteSize(from.dtype()))}));
}

// Tensors of a device, of zeros, which live as long as this.
class Memory {
 public:
  explicit Memory(CudaDevice& device) : device_(device) {}
  TensorView operator()(DType type, std::initializer_list<int64_t> shape) const {
    const TensorView view(nullptr, type, shape);
    all_.push_back(device_.Allocate(static_cast<size_t>(view.elements()) * ByteSize(type)));
    return TensorView(all_.back()->data(), type, shape);
  }

 private:
  CudaDevice& device_;
  mutable std::vector<std::unique_ptr<DeviceMemory>> all_;
};

// What a norm reads, adds to and writes.
struct Normed {
  Normed(const Memory& memory, int64_t tokens, int64_t width)
      : x(memory(DType::kBF16, {tokens, width})),
        residual(memory(DType::kF32, {tokens, width})),
        out(memory(DType::kBF16, {tokens, width})),
        codes(memory(DType::kF8E4M3, {tokens, width})),
        scales(memory(DType::kF32, {width / 128, (tokens + 31) / 32 * 32})) {}

  RmsNormArgs Args(const TensorView& weight, const TensorView& live) const {
    return {.x = x,
            .residual = residual,
            .weight = weight,
            .live = live,
            .out = out,
            .quantized = {codes, scales, false}};
  }
  TensorView x, residual, out, codes, scales;
};

// The tokens that a rank sums, and keeps the residual of.
bool Sums(int64_t token, int64_t tokens, int64_t width, int ranks, int rank, bool whole) {
  SumRound round;
  while (token >= round.first + round.count) {
    round = SumRound::At(round.first + round.count, tokens, static_cast<size_t>(width) * 2, ranks,
                         whole);
  }
  const Share mine = round.Of(rank);
  return token - round.first >= mine.begin && token - round.first < mine.end;
}

// In every form, on each rank, it has the bits of one rank's norm of the sum.
TEST_P(PeerRanksTest, AllReduceNormIsTheNormOfTheSumInTheOrderOfRanks) {
  // Of 7168 numbers: the forms meet between 73 and 74 tokens, of four ranks between 32 and 33; a
  // round of the large one has 1170.
  constexpr int64_t kWidth = 7168;
  const auto sizes = one_gpu() ? std::vector<int64_t>{74, 1200}
                               : std::vector<int64_t>{1, 3, 32, 33, 72, 73, 74, 75, 1200, 2400};
  for (const int64_t tokens : sizes) {
    const auto sum = SumOfParts(count(), 7, tokens * kWidth);
    std::vector<BF16> rounded;
    for (const float x : sum) rounded.push_back(ToBF16(x));
    for (const auto& [live, whole] :
         {std::pair(tokens, false), {tokens / 2, false}, {int64_t{0}, false}, {tokens, true}}) {
      const Status all = OnRanks(count(), [&](int rank) -> Status {
        CudaDevice& device = peers_->device(rank);
        device.BindThread();
        const Ops& ops = CudaPortableOps(Fp8Activations::kExact);
        const Memory memory(device);
        const TensorView weight = memory(DType::kF32, {kWidth}), n = memory(DType::kI32, {1});
        const Normed ranks_norm(memory, tokens, kWidth), one(memory, tokens, kWidth);
        Upload(device, weight, Normals(kWidth, 3));
        Upload(device, n, std::vector{static_cast<int32_t>(live)});
        const std::vector<float> before = Normals(tokens * kWidth, 4);
        Upload(device, one.x, rounded);
        Upload(device, one.residual, before);
        Upload(device, ranks_norm.x, Part(rank, 7, tokens * kWidth));
        Upload(device, ranks_norm.residual, before);
        OpContext context{device.stream(), {}};
        ops.all_reduce_norm(
            context,
            {.norm = ranks_norm.Args(weight, n), .whole = whole, .ranks = &peers_->of(rank)});
        ops.rms_norm(context, one.Args(weight, n));
        for (const auto view : {&Normed::out, &Normed::codes, &Normed::scales}) {
          const TensorView got = ranks_norm.*view, expected = one.*view;
          if (Bytes(device, got) == Bytes(device, expected)) continue;
          return Internal("rank {}, {} of {} tokens: {} differ", rank, live, tokens,
                          got.ToString());
        }
        const auto got = Download<float>(device, ranks_norm.residual);
        const auto expected = Download<float>(device, one.residual);
        for (size_t i = 0; i < got.size(); ++i) {
          const auto token = static_cast<int64_t>(i) / kWidth;
          const bool adds = Sums(token, tokens, kWidth, count(), rank, whole);
          if (got[i] == (adds ? expected : before)[i]) continue;
          return Internal("rank {}, {} of {} tokens: residual {} is {}", rank, live, tokens, i,
                          got[i]);
        }
        return device.status();
      });
      EXPECT_TRUE(all.ok()) << all.message();
    }
  }
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

float Number(float x) {
  return x;
}
float Number(BF16 x) {
  return ToFloat(x);
}

// Compares the numbers of `live` tokens, [tokens, width], with expected(i).
template <class T, class Expected>
Status Compare(CudaDevice& device, const TensorView& numbers, int64_t live,
               const Expected& expected) {
  const auto got = Download<T>(device, numbers);
  for (int64_t i = 0; i < live * numbers.dim(1); ++i) {
    if (const float number = Number(got[static_cast<size_t>(i)]); number != expected(i)) {
      return Internal("number {} of {} live tokens is {}, not {}", i, live, number, expected(i));
    }
  }
  return Status();
}

// What a rank alone makes of the sum.
std::vector<BF16> NormOf(CudaDevice& device, const std::vector<float>& sum,
                         const TensorView& weight) {
  const Memory memory(device);
  const auto tokens = static_cast<int64_t>(sum.size()) / weight.dim(0);
  const TensorView x = memory(DType::kBF16, {tokens, weight.dim(0)});
  const TensorView live = memory(DType::kI32, {1});
  std::vector<BF16> rounded;
  for (const float number : sum) rounded.push_back(ToBF16(number));
  Upload(device, x, rounded);
  Upload(device, live, std::vector{static_cast<int32_t>(tokens)});
  OpContext context{device.stream(), {}};
  CudaPortableOps(Fp8Activations::kExact)
      .rms_norm(context, {.x = x, .weight = weight, .live = live, .out = x});
  return Download<BF16>(device, x);
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
    const Memory memory(device);
    const Normed all_tokens(memory, kMostTokens, width);
    const TensorView weight = memory(DType::kF32, {width});
    const TensorView lives = memory(DType::kI32, {kMostTokens + 1});
    const TensorView piece = memory(DType::kF32, {kMostTokens * share.size()});
    const TensorView all_gathered = memory(DType::kF32, {kMostTokens * kVocab});
    std::vector<int32_t> counts(kMostTokens + 1);
    std::iota(counts.begin(), counts.end(), 0);
    Upload(device, lives, counts);
    Upload(device, weight, Normals(width, 3));
    Upload(device, all_tokens.x, Part(rank, 1, kMostTokens * width));
    Upload(device, piece, Piece(rank, kMostTokens * share.size()));
    const std::vector<BF16> normed =
        NormOf(device, SumOfParts(count(), 1, kMostTokens * width), weight);
    OpContext context{device.stream(), {}};
    Rng rng(5, 5);  // the same on all ranks
    for (int round = 0; round < rounds; ++round) {
      const auto tokens = static_cast<int64_t>(fewest + rng.Next() % (kMostTokens + 1 - fewest));
      const auto live = static_cast<int64_t>(rng.Next() % (tokens + 1));
      const TensorView n = lives.Slice(0, live, live + 1);
      const bool gathers = rng.Next() % 8 == 0, looks = rng.Next() % looks_each == 0;
      const TensorView gathered(all_gathered.data(), DType::kF32, {tokens, kVocab});
      RmsNormArgs norm = all_tokens.Args(weight, n);
      for (TensorView* of : {&norm.x, &norm.residual, &norm.out}) *of = of->Slice(0, 0, tokens);
      norm.quantized = {};
      if (gathers) {
        ops.all_gather(context, {.x = TensorView(piece.data(), DType::kF32, {tokens, share.size()}),
                                 .live = n,
                                 .out = gathered,
                                 .unit = ShareUnit(kVocab, count()),
                                 .ranks = &peers_->of(rank)});
      } else {
        ops.all_reduce_norm(context, {.norm = norm, .begins = true, .ranks = &peers_->of(rank)});
      }
      if (!looks) continue;
      ++checked;
      const Status same =
          gathers ? Compare<float>(device, gathered, live,
                                   [&](int64_t i) { return GatheredNumber(count(), kVocab, i); })
                  : Compare<BF16>(device, norm.out, live, [&](int64_t i) {
                      return ToFloat(normed[static_cast<size_t>(i)]);
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
