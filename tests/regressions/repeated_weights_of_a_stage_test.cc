// `fathom plan --json` said of pipeline stages how much of their weights all ranks have, as if the
// stages were cut by the bytes of such weights alone: it counted other layers than the stage's.
#include <gtest/gtest.h>

#include "checkpoint/presets.h"
#include "model/shard.h"
#include "ops/cuda_properties.h"

namespace fathom {
namespace {

TEST(RepeatedWeightsOfAStage, AreAllOfItsWeightsButRoutedExperts) {
  ModelConfig config = PresetConfig("v3").value();
  config.num_mtp_layers = 0;
  const Ops ops = CudaProperties(/*hopper=*/true);
  const TensorSizes sizes = PublishedSizes(config);
  size_t expert = 0;
  for (const auto& [entry, bytes] : sizes) {
    if (entry.layer == 10 && entry.expert == 0) expert += bytes;
  }
  const ParallelLayout layout = {.data = 4, .pipeline = 2, .experts = true};
  for (int rank = 0; rank < layout.world(); ++rank) {
    const Shard shard = Shard::OfRank(layout, rank, {});
    const Share layers = LayersOf(config, shard, sizes);
    size_t routed = 0;
    for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
      if (config.IsMoeLayer(static_cast<int>(layer))) routed += 256 / 4 * expert;
    }
    EXPECT_EQ(PartBytes(config, ops, shard, sizes) - ReplicatedBytes(config, ops, shard, sizes),
              routed)
        << "rank " << rank;
  }
}

}  // namespace
}  // namespace fathom
