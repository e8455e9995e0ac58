// Ranks on CPUs: each brings pieces of memory to a meeting, and all look at what all have brought.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/communicator.h"

namespace fathom {

class MeetingRanks : public Communicator {
 public:
  // What a rank brings. Ranks may bring pieces of different sizes, but equally many.
  using Pieces = std::vector<std::span<const std::byte>>;

  using Communicator::Communicator;
  // Bytes of a piece.
  struct Bounds {
    size_t least = 0, most = 0;
  };
  // What `rank` may bring as its piece of this number. Those of another process are held to it
  // before there is room for them, and whoever breaks it is lost; empty: they may bring anything.
  using BoundsOf = std::function<Bounds(int rank, size_t piece)>;

  // Waits, asleep, until all ranks are here; then what each of them brought, in the order of ranks,
  // which may be read until Part(). Nothing once the ranks have given up (Abort). THREAD: the
  // rank's.
  virtual std::span<const Pieces> Meet(Pieces mine, const BoundsOf& bounds) = 0;
  // Waits until all ranks have read what they wanted of it. REQUIRES: Meet() brought something.
  virtual void Part() = 0;

  void GiveUpAfter(double seconds, std::function<void(const Status&)> late) override {
    patience_ = std::chrono::duration<double>(seconds);
    late_ = std::move(late);
  }

 protected:
  using Clock = std::chrono::steady_clock;
  // Until when a wait that begins now lasts.
  Clock::time_point Until() const {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(patience_);
  }
  // "rank 0 has waited 2 s for rank 3", of those of the layout.
  std::string HasWaitedFor(const std::string& others) const;
  // These ranks of the group have not come in time: says so, and gives up.
  void GiveUpOn(std::span<const size_t> ranks);

 private:
  std::chrono::duration<double> patience_ = std::chrono::hours(24);
  std::function<void(const Status&)> late_;
};

}  // namespace fathom
