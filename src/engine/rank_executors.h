// The executors of this host's ranks, and those of other hosts' that stand beside them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/assembly.h"
#include "engine/model_executor.h"
#include "engine/remote_executor.h"

namespace fathom {

// Has ranks that wait for each other on the host do so no longer than that. Returns what is to be
// called once one of them has failed, from any thread: it logs what each has come to, and nothing
// more is asked of any, as what the others have is not to be relied on either, and none of them
// waits for the one that failed.
std::function<void(const Status&)> FailTogether(std::span<const EngineRank> ranks,
                                                double step_timeout_s);

struct RankExecutors {
  std::vector<std::unique_ptr<Executor>> ranks;  // in the order of ranks
  RecordedSteps recorded;                        // by the first
};

// All ranks at once: what is recorded may make them wait for each other. `hosts`: null if there is
// but one.
Result<RankExecutors> MakeRankExecutors(const std::vector<std::unique_ptr<Model>>& models,
                                        std::span<const EngineRank> ranks,
                                        ModelExecutorOptions options, Hosts* hosts);

// By data-parallel group, of each group its ranks here as one.
std::map<uint32_t, std::unique_ptr<Executor>> ByGroup(
    std::vector<std::unique_ptr<Executor>> executors, std::span<const EngineRank> ranks);

// All ranks of all hosts as one executor, whose results come from those of the last stage. `remote`
// gets what stands for the ranks elsewhere.
std::unique_ptr<Executor> AsOneExecutor(std::vector<std::unique_ptr<Executor>> executors,
                                        std::span<const EngineRank> ranks, Hosts* hosts,
                                        std::vector<std::shared_ptr<RemoteResults>>& remote);

}  // namespace fathom
