#include "engine/rank_meetings.h"

#include <map>
#include <optional>
#include <utility>

namespace fathom {
namespace {

struct Came {
  int rank = 0;  // of the layout
  Meeting last;
};

// Whether another of the group is further.
bool IsBehind(const Came& one, std::span<const Came> group) {
  for (const Came& other : group) {
    const uint32_t ahead = (other.last.number - one.last.number) % Meeting::kNumbers;
    if (ahead != 0 && ahead < Meeting::kNumbers / 2) return true;
  }
  return false;
}

std::string Describe(const Came& one, std::span<const Came> group) {
  const Meeting& last = one.last;
  const std::string at = last.op.empty() ? "is at none"
                                         : fmt::format("is at {}, {} of [{}, {}]", last.number,
                                                       last.op, last.tokens, last.width);
  return fmt::format("rank {} {}{}", one.rank, at,
                     IsBehind(one, group) ? " and has not come to the next" : "");
}

}  // namespace

std::vector<std::string> DescribeMeetings(std::span<const EngineRank> ranks) {
  // By what a group is to its ranks, and by these.
  std::map<std::pair<std::string_view, std::vector<int>>, std::vector<Came>> groups;
  for (const EngineRank& rank : ranks) {
    const RankGroups& of = rank.shard.groups;
    const std::pair<std::string_view, Communicator*> its[] = {{"tensor-parallel group", of.tensor},
                                                              {"exchange of experts", of.experts},
                                                              {"residual of stages", of.before},
                                                              {"residual of stages", of.after},
                                                              {"tokens of stages", of.stages}};
    for (const auto& [name, group] : its) {
      const auto last = group == nullptr ? std::nullopt : group->LastMeeting();
      if (!last) continue;
      std::vector<int> members;
      for (int i = 0; i < group->size(); ++i) members.push_back(group->InLayout(i));
      const int own = group->InLayout(group->rank());
      groups[{name, std::move(members)}].push_back({own, *last});
    }
  }
  std::vector<std::string> lines;
  for (const auto& [key, group] : groups) {
    std::string& line = lines.emplace_back(fmt::format("meetings of the {}:", key.first));
    for (const Came& one : group) {
      line += (&one == &group[0] ? " " : "; ") + Describe(one, group);
    }
  }
  return lines;
}

}  // namespace fathom
