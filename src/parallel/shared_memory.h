// Ranks that are threads of one process and share its memory: CPU ranks of a host, and the
// reference of the others.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "parallel/meeting_place.h"
#include "parallel/meeting_ranks.h"

namespace fathom {

class SharedMemoryCommunicator final : public MeetingRanks {
 public:
  // Those of a group of `size` ranks, which share what they meet in.
  static std::vector<std::unique_ptr<SharedMemoryCommunicator>> Group(int size);

  // For JoinedRanks.
  static Result<std::vector<std::unique_ptr<Communicator>>> GroupOf(std::span<const int> ranks);

  std::span<const Pieces> Meet(Pieces mine, const BoundsOf&) override;
  void Part() override;
  void Abort() override { place_->GiveUp(); }

 private:
  SharedMemoryCommunicator(int rank, int size, std::shared_ptr<MeetingPlace> place)
      : MeetingRanks(rank, size), place_(std::move(place)) {}
  std::shared_ptr<MeetingPlace> place_;
};

}  // namespace fathom
