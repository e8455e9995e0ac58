// The order of the wide MLA decode kernels' items, as each block finds it, against a plain model.
// Needs a GPU: skipped elsewhere.
#include "ops/attend_absorbed/mla_decode_order.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/check.h"
#include "ops/testing.h"

namespace fathom::mla {
namespace {

constexpr int kItemInts = sizeof(Item) / sizeof(int32_t);
constexpr int kFirst = 7;  // tokens of passes before
constexpr int kBlocks = 132, kClusters = 15;

// A block per taker, a warp each: `items` [takers, room] are its items and one that says there are
// no more; what is beyond `room` is not written.
template <int kTokens>
__global__ void TakeItems(const __grid_constant__ Step step, Item* items, int32_t room) {
  __shared__ OrderShared<kTokens> s;
  ItemOrder order(s, step, static_cast<int32_t>(blockIdx.x), static_cast<int32_t>(gridDim.x));
  for (int32_t turn = 0; turn < room; ++turn) {
    const Item item = order.Next();
    if (threadIdx.x == 0) items[blockIdx.x * room + turn] = item;
    if (item.tokens == 0) return;
  }
}

struct Row {
  int context;  // positions, the row's tokens included
  int tokens = 1;
};

struct Problem {
  int heads;
  std::vector<Row> rows;
  MlaDecodeSplit split = {.tokens = 4096, .short_context = 4096, .short_tokens = 2048};
  int dead = 0;   // tokens of the capacity, which look as if the last row went on
  int later = 0;  // live tokens of passes to come
  int takers = kBlocks;
  bool columns = false;  // takers are clusters of the columns kernel

  int group_tokens() const { return std::max(1, kPairs / heads); }
  int head_blocks() const { return (heads + kPairs - 1) / kPairs; }
  int part_tokens(int position) const {
    if (split.parts > 0) return std::max(2, (position / kKeys + split.parts) / split.parts) * kKeys;
    return position < split.short_context ? split.short_tokens : split.tokens;
  }
};

// {token, tokens, position, slot, part tokens, part, head block}, and the part's tiles.
struct ModelItem {
  std::array<int32_t, kItemInts> item;
  int tiles;
  auto operator<=>(const ModelItem&) const = default;
};

ModelItem OfDevice(const int32_t* ints) {
  ModelItem m;
  std::copy(ints, ints + kItemInts, m.item.begin());
  const auto [token, tokens, position, slot, part_tokens, part, head_block] = m.item;
  m.tiles = (std::min(position + tokens - part * part_tokens, part_tokens) + kKeys - 1) / kKeys;
  return m;
}

std::vector<ModelItem> Model(const Problem& p) {
  std::vector<ModelItem> items;
  int token = 0, slot = 0;
  for (const Row& row : p.rows) {
    ++slot;
    for (int done = 0, count; done < row.tokens; done += count, token += count) {
      const int position = row.context - row.tokens + done, part_tokens = p.part_tokens(position);
      for (count = 1; count < p.group_tokens() && done + count < row.tokens; ++count) {
        if (p.part_tokens(position + count) != part_tokens) break;
      }
      for (int part = 0; part * part_tokens < position + count; ++part) {
        const int end = std::min(position + count, (part + 1) * part_tokens);
        for (int head_block = 0; head_block < p.head_blocks(); ++head_block) {
          items.push_back({{token, count, position, slot, part_tokens, part, head_block},
                           (end - part * part_tokens + kKeys - 1) / kKeys});
        }
      }
    }
  }
  return items;
}

// By taker, in order.
std::vector<std::vector<ModelItem>> Take(const Problem& p, int32_t room) {
  std::vector<int32_t> slots, positions;
  for (const Row& row : p.rows) {
    const int slot = slots.empty() ? 1 : slots.back() + 1;
    for (int i = 0; i < row.tokens; ++i) {
      slots.push_back(slot), positions.push_back(row.context - row.tokens + i);
    }
  }
  const auto live = static_cast<int32_t>(slots.size());
  for (int i = 0; i < p.dead; ++i) {
    slots.push_back(live == 0 ? 1 : slots[live - 1]);
    positions.push_back(live == 0 ? i : positions[live - 1] + 1 + i);
  }
  const auto tokens = static_cast<int32_t>(slots.size());
  EXPECT_LE(tokens, p.columns ? kColumnsTokens : kPassTokens);
  const TestTensor d_slots = Ints({tokens}, slots), d_positions = Ints({tokens}, positions),
                   d_live = Live(kFirst + live + p.later);
  TestTensor items(DType::kI32, {p.takers, room, kItemInts});
  const Step step = {.slots = static_cast<const int32_t*>(d_slots.view().data()),
                     .positions = static_cast<const int32_t*>(d_positions.view().data()),
                     .live = static_cast<const int32_t*>(d_live.view().data()),
                     .first = kFirst,
                     .tokens = tokens,
                     .heads = p.heads,
                     .group_tokens = p.group_tokens(),
                     .head_blocks = p.head_blocks(),
                     .part_tokens = p.split.tokens,
                     .short_context = p.split.short_context,
                     .short_tokens = p.split.short_tokens,
                     .parts = p.split.parts,
                     .part_share = PartShare(p.split.parts)};
  (p.columns ? TakeItems<kColumnsTokens> : TakeItems<kPassTokens>)<<<p.takers, 32>>>(
      step, static_cast<Item*>(items.view().data()), room);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<std::vector<ModelItem>> taken(p.takers);
  const std::vector<int32_t> ints = items.Ints();
  for (int taker = 0; taker < p.takers; ++taker) {
    const int32_t* its = &ints[size_t(taker) * room * kItemInts];
    for (int turn = 0; turn < room && its[turn * kItemInts + 1] != 0; ++turn) {
      taken[taker].push_back(OfDevice(its + turn * kItemInts));
    }
  }
  return taken;
}

// The most tiles of a taker over the mean; expects every item once, by falling size, and, unless
// classes have several sizes, no taker to have more than the mean and an item.
double Dealt(const Problem& p) {
  std::vector<ModelItem> want = Model(p);
  const auto items = static_cast<int>(want.size());
  const std::vector<std::vector<ModelItem>> taken = Take(p, items / p.takers + 3);
  std::vector<ModelItem> got;
  int most = 0, largest = 0, sum = 0;
  for (int turn = 0; static_cast<int>(got.size()) < items; ++turn) {
    const size_t before = got.size();
    for (int i = 0; i < p.takers; ++i) {
      const auto& its = taken[turn % 2 == 0 ? i : p.takers - 1 - i];
      if (turn < static_cast<int>(its.size())) got.push_back(its[turn]);
    }
    if (got.size() == before) break;
  }
  // Where every taker has at most one item, the order does not matter; nor do sizes of one class.
  EXPECT_TRUE(items <= p.takers ||
              std::is_sorted(got.begin(), got.end(), [](const auto& a, const auto& b) {
                return std::min(a.tiles, kRunClasses) > std::min(b.tiles, kRunClasses);
              }));
  for (const auto& its : taken) {
    int tiles = 0;
    for (const ModelItem& item : its) tiles += item.tiles, largest = std::max(largest, item.tiles);
    most = std::max(most, tiles), sum += tiles;
    EXPECT_LE(its.size(), size_t(items + p.takers - 1) / p.takers);
  }
  std::sort(got.begin(), got.end());
  std::sort(want.begin(), want.end());
  EXPECT_EQ(got.size(), want.size());
  EXPECT_TRUE(got == want);
  const double mean = double(sum) / p.takers;
  if (largest <= kRunClasses) {
    EXPECT_LE(most, mean + largest);
  }
  return sum == 0 ? 0 : most / mean;
}

class MlaDecodeOrderTest : public testing::Test {
 protected:
  void SetUp() override {
    const TestBackend any_gpu = TablesUnderTest(Fp8Activations::kQuantized).front();
    if (const std::string why = MissingDevice(any_gpu); !why.empty()) GTEST_SKIP() << why;
    StreamUnderTest(any_gpu);  // binds the thread to the device
  }
};

TEST_F(MlaDecodeOrderTest, NoLiveTokenIsNoItem) {
  EXPECT_EQ(Dealt({.heads = 128, .rows = {}, .dead = 5}), 0);
  EXPECT_EQ(Dealt({.heads = 20, .rows = {}, .dead = 16, .takers = kClusters, .columns = true}), 0);
}

TEST_F(MlaDecodeOrderTest, DeadAndLaterTokensAreLeftOut) {
  for (const int heads : {20, 64, 72, 128}) {
    SCOPED_TRACE(heads);
    Dealt({.heads = heads, .rows = {{4190}}});
    Dealt({.heads = heads, .rows = {{4190, 2}, {64, 2}}, .dead = 9});
    Dealt({.heads = heads, .rows = std::vector<Row>(200, {4190}), .dead = 56});
    Dealt({.heads = heads, .rows = std::vector<Row>(256, {100}), .later = 44});
  }
}

TEST_F(MlaDecodeOrderTest, RowsOfSeveralTokens) {
  for (const int heads : {20, 64, 72, 128}) {
    for (const MlaDecodeSplit& split :
         {MlaDecodeSplit{2048, 4096, 1024}, {4096, 4096, 2048}, {128, 4096, 64}, {8192, 0, 0}}) {
      for (const int dead : {0, 3}) {
        SCOPED_TRACE(testing::Message() << heads << " heads, parts of " << split.tokens);
        std::vector<Row> rows, few;
        for (int tokens = 1; tokens <= 8; ++tokens) {
          for (const int context : {tokens, 64, 65, 4096, 4098, 4190, 8300}) {
            rows.push_back({std::max(context, tokens), tokens});
          }
          if (tokens <= 6) few.push_back({4090 + 2 * tokens, tokens});
        }
        Dealt({heads, rows, split, dead});
        Dealt({heads, few, split, dead, 0, kClusters, true});
      }
    }
  }
}

// As many parts as suit a step, and as many tokens as a pass has.
TEST_F(MlaDecodeOrderTest, PartsOfTheStep) {
  for (const int parts : {1, 2, 3, 7, 64}) {
    for (const int heads : {16, 20, 32, 72}) {
      SCOPED_TRACE(testing::Message() << parts << " parts, " << heads << " heads");
      const MlaDecodeSplit split = {.tokens = 1 << 20, .parts = parts};
      std::vector<Row> rows;
      for (int tokens = 1; tokens <= 8; ++tokens) {
        for (const int context : {tokens, 64, 129, 4096, 4190, 163840}) {
          rows.push_back({std::max(context, tokens), tokens});
        }
      }
      Dealt({heads, rows, split, 3});
      Dealt({heads, std::vector<Row>(64, {4090, 8}), split});
      Dealt({heads, std::vector<Row>(kPassTokens, {700}), split});
    }
  }
}

TEST_F(MlaDecodeOrderTest, MixedContexts) {
  std::mt19937_64 random(1);
  for (const int heads : {20, 64, 72, 128}) {
    for (int round = 0; round < 4; ++round) {
      SCOPED_TRACE(testing::Message() << heads << " heads, round " << round);
      std::vector<Row> rows, few;
      for (int i = 0; i < 128; ++i) rows.push_back({static_cast<int>(512 + random() % 7681)});
      for (int i = 0; i < 16; ++i) few.push_back({static_cast<int>(1 + random() % 20000)});
      EXPECT_LE(Dealt({.heads = heads, .rows = rows}), 1.25);
      Dealt({.heads = heads, .rows = few, .takers = kClusters, .columns = true});
    }
  }
}

// In the order of tokens half the blocks came to full parts only, the others to rests.
TEST_F(MlaDecodeOrderTest, FullPartsAndRestsAreSpread) {
  EXPECT_LE(Dealt({.heads = 128, .rows = std::vector<Row>(128, {4190})}), 1.1);
  EXPECT_LE(Dealt({.heads = 128, .rows = std::vector<Row>(128, {8300})}), 1.1);
}

}  // namespace
}  // namespace fathom::mla
