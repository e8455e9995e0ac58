#include "engine/rank_executors.h"

#include <barrier>
#include <memory>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "base/numa_node.h"
#include "engine/rank_meetings.h"
#include "engine/ranked_executor.h"
#include "parallel/on_ranks.h"

namespace fathom {
namespace {

// All that ranks wait for each other through.
std::vector<Communicator*> GroupsOf(std::span<const EngineRank> ranks) {
  std::vector<Communicator*> groups;
  for (const EngineRank& rank : ranks) {
    const RankGroups& of = rank.shard.groups;
    for (Communicator* group : {of.tensor, of.experts, of.before, of.after, of.stages}) {
      if (group != nullptr) groups.push_back(group);
    }
  }
  return groups;
}

using GroupMembers = std::vector<std::vector<std::unique_ptr<Executor>>>;

// Those that are here, by group, of each the stages in their order.
GroupMembers Members(std::vector<std::unique_ptr<Executor>> executors,
                     std::span<const EngineRank> ranks) {
  GroupMembers groups(static_cast<size_t>(ranks[0].shard.layout.data));
  for (size_t rank = 0; rank < executors.size(); ++rank) {
    const auto group = static_cast<size_t>(ranks[rank].shard.data_rank);
    groups[group].push_back(std::move(executors[rank]));
  }
  return groups;
}

// What another host has of a group.
struct HostsPart {
  bool any = false, last_stage = false;
};
HostsPart PartOf(const Hosts& hosts, int host, int group, const ParallelLayout& layout) {
  HostsPart part;
  const int first = host * hosts.ranks_each();
  for (int rank = first; rank < first + hosts.ranks_each(); ++rank) {
    if (layout.GroupOf(rank) != group) continue;
    part.any = true;
    part.last_stage |= layout.StageOf(rank) == layout.pipeline - 1;
  }
  return part;
}

}  // namespace

std::function<void(const Status&)> FailTogether(std::span<const EngineRank> ranks,
                                                double step_timeout_s) {
  std::vector<Device*> devices;
  for (const EngineRank& rank : ranks) devices.push_back(rank.device);
  const auto first = std::make_shared<std::once_flag>();
  const std::vector<EngineRank> all_here(ranks.begin(), ranks.end());
  const auto on_failure = [devices, first, all_here, groups = GroupsOf(ranks)](const Status& why) {
    // Ahead of Abort(), from which on they come to what means nothing.
    std::call_once(*first, [&] {
      for (const std::string& line : DescribeMeetings(all_here)) {
        LOG_ERROR("{}: {}", why.message(), line);
      }
    });
    for (Device* device : devices) device->Abandon("given up with " + why.message());
    for (Communicator* group : groups) group->Abort();
  };
  for (const EngineRank& rank : ranks) {
    for (Communicator* group : GroupsOf({&rank, 1})) {
      group->GiveUpAfter(step_timeout_s, [device = rank.device, on_failure](const Status& why) {
        device->Abandon(why.message());
        on_failure(why);
      });
    }
  }
  return on_failure;
}

Result<RankExecutors> MakeRankExecutors(const std::vector<std::unique_ptr<Model>>& models,
                                        std::span<const EngineRank> ranks,
                                        ModelExecutorOptions options, Hosts* hosts) {
  RankExecutors made;
  made.ranks.resize(ranks.size());
  std::barrier<> all(static_cast<std::ptrdiff_t>(ranks.size()));
  if (ranks.size() > 1) {
    options.meet = [&all] { all.arrive_and_wait(); };
  }
  if (ranks.size() > 1 || hosts != nullptr) {
    options.on_failure = FailTogether(ranks, options.step_timeout_s);
  }
  TRY(OnRanks(static_cast<int>(ranks.size()), [&](int rank) -> Status {
    const auto at = static_cast<size_t>(rank);
    const OnCpus near(ranks[at].device->near_cpus());  // the executor's thread too
    ranks[at].device->BindThread();
    auto executor = std::make_unique<ModelExecutor>(*models[at], *ranks[at].device, options);
    if (rank == 0) made.recorded = executor->recorded();
    made.ranks[at] = std::move(executor);
    return ranks[at].device->status();
  }));
  return made;
}

std::map<uint32_t, std::unique_ptr<Executor>> ByGroup(
    std::vector<std::unique_ptr<Executor>> executors, std::span<const EngineRank> ranks) {
  std::map<uint32_t, std::unique_ptr<Executor>> groups;
  GroupMembers members = Members(std::move(executors), ranks);
  for (size_t group = 0; group < members.size(); ++group) {
    if (members[group].empty()) continue;
    GroupMembers alone;
    alone.push_back(std::move(members[group]));
    groups[static_cast<uint32_t>(group)] = std::make_unique<RankedExecutor>(std::move(alone));
  }
  return groups;
}

std::unique_ptr<Executor> AsOneExecutor(std::vector<std::unique_ptr<Executor>> executors,
                                        std::span<const EngineRank> ranks, Hosts* hosts,
                                        std::vector<std::shared_ptr<RemoteResults>>& remote) {
  const ParallelLayout& layout = ranks[0].shard.layout;
  if (layout.world() == 1) return std::move(executors[0]);
  GroupMembers groups = Members(std::move(executors), ranks);
  for (int group = 0; hosts != nullptr && group < layout.data; ++group) {
    auto& members = groups[static_cast<size_t>(group)];
    const HostsPart here = PartOf(*hosts, hosts->index(), group, layout);
    for (int host = 0; host < hosts->count(); ++host) {
      const HostsPart there = PartOf(*hosts, host, group, layout);
      if (host == hosts->index() || !there.any) continue;
      remote.push_back(std::make_shared<RemoteResults>(host, group));
      auto executor = std::make_unique<RemoteExecutor>(*hosts, remote.back());
      // The last one's results count: those of a last stage, and if there is one, of this host's.
      const bool last = there.last_stage && !here.last_stage;
      members.insert(last ? members.end() : members.begin(), std::move(executor));
    }
  }
  return std::make_unique<RankedExecutor>(std::move(groups));
}

}  // namespace fathom
