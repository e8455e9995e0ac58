#include "model/weights.h"

#include <gtest/gtest.h>

#include "checkpoint/testing.h"
#include "cpu/cpu_device.h"
#include "parallel/on_ranks.h"

namespace fathom {
namespace {

// Loads on ranks [begin, end) of the layout, which are those of one host, at the same time.
Status LoadRanks(const Checkpoint& checkpoint, const ParallelLayout& layout, int begin, int end) {
  std::vector<int> stages;
  for (int rank = begin; rank < end; ++rank) stages.push_back(layout.StageOf(rank));
  ReadWindow window(stages, /*bytes=*/1);
  return OnRanks(end - begin, [&](int at) -> Status {
    CpuDevice device(1);
    const auto loaded =
        LoadWeights(checkpoint, ReferenceOps(Fp8Activations::kExact), device,
                    Shard::OfRank(layout, begin + at, {}), /*progress=*/nullptr, {&window, at});
    window.Leave(at, loaded.status());
    return loaded.status();
  });
}

constexpr ParallelLayout kLayouts[] = {{},
                                       {.tensor = 2},
                                       {.pipeline = 2},
                                       {.data = 2, .experts = true},
                                       {.tensor = 2, .pipeline = 2},
                                       {.tensor = 2, .data = 2, .pipeline = 2, .experts = true}};

// However many ranks a host has, each tensor is asked for until the last one has read it, and then
// never again: so each byte needs to come from disk but once.
TEST(Weights, AHostAsksForEachByteOnce) {
  for (const ParallelLayout& layout : kLayouts) {
    const Checkpoint checkpoint = Checkpoint::Open("models/tiny-r1").value();
    const Status status = LoadRanks(checkpoint, layout, 0, layout.world());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(checkpoint.asked_bytes(), checkpoint.total_bytes())
        << layout.tensor << " x " << layout.pipeline << " x " << layout.data;
  }
}

// A stage, or a part of the experts, is read without the others'.
TEST(Weights, AHostAsksForItsPartAlone) {
  for (const ParallelLayout& layout :
       {ParallelLayout{.pipeline = 2}, {.data = 2, .experts = true}}) {
    const Checkpoint checkpoint = Checkpoint::Open("models/tiny-r1").value();
    ASSERT_TRUE(LoadRanks(checkpoint, layout, 1, 2).ok());
    EXPECT_LT(checkpoint.asked_bytes(), checkpoint.total_bytes() * 9 / 10);
  }
}

// A small model whose MTP layer has copies of embedding and head.
std::vector<testing::TestTensor> ModelWithCopies() {
  std::vector<testing::TestTensor> tensors = testing::SmallModel(testing::SmallModelConfig());
  const auto copy = [&](const char* main, const char* to) {
    testing::Named(tensors, to).bytes = testing::Named(tensors, main).bytes;
  };
  copy("model.embed_tokens.weight", "model.layers.2.embed_tokens.weight");
  copy("lm_head.weight", "model.layers.2.shared_head.head.weight");
  return tensors;
}

void ExpectAskedOnce(const std::string& config, const std::vector<testing::TestTensor>& tensors) {
  TestFolder folder;
  testing::WriteModel(folder, config, tensors);
  const Checkpoint checkpoint = Checkpoint::Open(folder.path()).value();
  const Status status = LoadRanks(checkpoint, {.tensor = 2}, 0, 2);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(checkpoint.asked_bytes(), checkpoint.total_bytes());
}

TEST(Weights, CopiesAreReadOnceToo) {
  ExpectAskedOnce(testing::SmallConfig(), ModelWithCopies());
}

TEST(Weights, ATiedEmbeddingIsReadOnceThoughItIsTheHeadToo) {
  std::vector<testing::TestTensor> tensors = ModelWithCopies();
  testing::Remove(tensors, "lm_head.weight");
  testing::Remove(tensors, "model.layers.2.shared_head.head.weight");
  ExpectAskedOnce(testing::SmallConfig({"tie_word_embeddings=true"}), tensors);
}

// The copy differs in the second rank's part; the first one is not left waiting for it.
TEST(Weights, ACopyThatDiffersEndsLoadingOnAllRanks) {
  TestFolder folder;
  std::vector<testing::TestTensor> tensors = ModelWithCopies();
  testing::Named(tensors, "model.layers.2.embed_tokens.weight").bytes.back() ^= 1;
  testing::WriteModel(folder, testing::SmallConfig(), tensors);
  const Checkpoint checkpoint = Checkpoint::Open(folder.path()).value();
  const Status status = LoadRanks(checkpoint, {.tensor = 2}, 0, 2);
  EXPECT_EQ(status.message(),
            "model.layers.2.embed_tokens.weight differs from model.embed_tokens.weight: MTP layers "
            "share the main model's");
}

}  // namespace
}  // namespace fathom
