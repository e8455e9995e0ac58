#include "engine/load_models.h"

#include <optional>

#include "base/disk_reads.h"
#include "base/log.h"
#include "base/numa_node.h"
#include "checkpoint/read_window.h"
#include "parallel/on_ranks.h"

namespace fathom {
namespace {

// So that one sees that each byte was read once, or was in the page cache already.
void LogReads(uint64_t asked, std::optional<int64_t> before) {
  const std::optional<int64_t> after = DiskBytesRead();
  const auto gib = [](auto bytes) { return static_cast<double>(bytes) / (1 << 30); };
  if (!before || !after) return;
  LOG_INFO("weights: tensors of {:.2f} GiB, for which {:.2f} GiB were read from disk", gib(asked),
           gib(*after - *before));
}

}  // namespace

Result<std::vector<std::unique_ptr<Model>>> LoadModels(const Checkpoint& checkpoint, const Ops& ops,
                                                       std::span<const EngineRank> ranks,
                                                       const ModelOptions& options,
                                                       const LoadProgress& progress) {
  std::vector<int> stages;
  for (const EngineRank& rank : ranks) stages.push_back(rank.shard.stage);
  ReadWindow window(stages);
  const uint64_t asked_before = checkpoint.asked_bytes();
  const std::optional<int64_t> read_before = DiskBytesRead();
  std::vector<std::unique_ptr<Model>> models(ranks.size());
  const auto load = [&](int rank) -> Status {
    const auto at = static_cast<size_t>(rank);
    const OnCpus near(ranks[at].device->near_cpus());
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
  if (!checkpoint.folder().empty()) LogReads(checkpoint.asked_bytes() - asked_before, read_before);
  return models;
}

}  // namespace fathom
