// Ranks on CPUs: each brings pieces of memory to a meeting, and all look at what all have brought.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "parallel/communicator.h"

namespace fathom {

class MeetingRanks : public Communicator {
 public:
  // What a rank brings. Ranks may bring pieces of different sizes, but equally many.
  using Pieces = std::vector<std::span<const std::byte>>;

  using Communicator::Communicator;
  // Waits, asleep, until all ranks are here; then what each of them brought, in the order of ranks,
  // which may be read until Part(). Nothing once the ranks have given up (Abort). THREAD: the
  // rank's.
  virtual std::span<const Pieces> Meet(Pieces mine) = 0;
  // Waits until all ranks have read what they wanted of it. REQUIRES: Meet() brought something.
  virtual void Part() = 0;
};

}  // namespace fathom
