#include "parallel/meeting_ranks.h"

#include <fmt/format.h>

#include "base/activity.h"

namespace fathom {

std::string MeetingRanks::HasWaitedFor(const std::string& others) const {
  return fmt::format("rank {} has waited {:g} s for {}", InLayout(rank()), patience_.count(),
                     others);
}

void MeetingRanks::GiveUpOn(std::span<const size_t> ranks) {
  std::string names;
  for (const size_t other : ranks) {
    names += fmt::format("{}rank {}", names.empty() ? "" : ", ", InLayout(static_cast<int>(other)));
  }
  // Before the others are let go: what they would go on with means nothing.
  if (late_) late_(Internal("{}{}", HasWaitedFor(names), DescribeActivity()));
  Abort();
}

}  // namespace fathom
