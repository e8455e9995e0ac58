// What the first host and the others tell each other of steps: each message is of one
// data-parallel group.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/status.h"
#include "hosts/link.h"

namespace fathom {

enum HostMessage : uint32_t {
  kPlanMessage = HostLink::kFirstOfOthers,  // StepPlan, to a host with ranks of the group
  kMasksMessage,                            // StepMasks, the same
  kResultMessage,                           // StepResult, of that host's ranks
  kRanksMessage,                            // RankStats of these, behind each result
};

inline constexpr size_t kMostInFlight = 256;  // steps, with room to spare

inline std::string OfGroup(uint32_t group, std::string_view message) {
  std::string bytes(sizeof group, '\0');
  std::memcpy(bytes.data(), &group, sizeof group);
  return bytes.append(message);
}

struct GroupMessage {
  uint32_t group = 0;
  std::string_view message;
};
inline Result<GroupMessage> SplitGroup(std::string_view bytes) {
  GroupMessage split;
  if (bytes.size() < sizeof split.group) return DataLoss("a message of no group");
  std::memcpy(&split.group, bytes.data(), sizeof split.group);
  split.message = bytes.substr(sizeof split.group);
  return split;
}

}  // namespace fathom
