#include "engine/load_models.h"

#include "checkpoint/read_window.h"
#include "parallel/on_ranks.h"

namespace fathom {

Result<std::vector<std::unique_ptr<Model>>> LoadModels(const Checkpoint& checkpoint, const Ops& ops,
                                                       std::span<const EngineRank> ranks,
                                                       const ModelOptions& options,
                                                       const LoadProgress& progress) {
  std::vector<int> stages;
  for (const EngineRank& rank : ranks) stages.push_back(rank.shard.stage);
  ReadWindow window(stages);
  std::vector<std::unique_ptr<Model>> models(ranks.size());
  const auto load = [&](int rank) -> Status {
    const auto at = static_cast<size_t>(rank);
    ranks[at].device->BindThread();
    ModelOptions of_rank = options;
    of_rank.shard = ranks[at].shard;
    models[at] = TRY(Model::Load(checkpoint, ops, *ranks[at].device, of_rank,
                                 rank == 0 ? progress : LoadProgress(), {&window, rank}));
    return {};
  };
  TRY(OnRanks(static_cast<int>(ranks.size()), [&](int rank) -> Status {
    Status status = load(rank);
    window.Leave(rank, status);
    return status;
  }));
  return models;
}

}  // namespace fathom
