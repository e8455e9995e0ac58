// Whom the ranks of a host wait for, in words, once something has failed.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/assembly.h"

namespace fathom {

// A line for each group with ranks here that tell (Communicator::LastMeeting): op and shape of what
// each has come to last, and who has not come to where others wait. Of no device anything is asked.
std::vector<std::string> DescribeMeetings(std::span<const EngineRank> ranks);

}  // namespace fathom
