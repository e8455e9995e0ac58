// CPU ranks of several hosts: those of one share memory, and each has a connection of its own, a
// lane, to every rank elsewhere that it meets.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "hosts/socket.h"
#include "parallel/meeting_place.h"
#include "parallel/meeting_ranks.h"

namespace fathom {

// Of one rank, by the ranks of its group: those of its own host, and itself, have none.
class Lanes {
 public:
  explicit Lanes(size_t ranks) : sockets(ranks), names(ranks) {}
  // THREAD: any.
  void Shutdown() {
    for (Socket& socket : sockets) socket.Shutdown();
  }
  std::vector<Socket> sockets;
  std::vector<std::string> names;  // of those ranks, for messages
};

class LaneCommunicator final : public MeetingRanks {
 public:
  // `place`: where the ranks of this host meet, which are `local` of the group's, in their order.
  // THREAD: on_failure is called on the rank's, when a lane does not hold.
  LaneCommunicator(int rank, std::shared_ptr<MeetingPlace> place, std::vector<size_t> local,
                   std::shared_ptr<Lanes> lanes, std::function<void(Status)> on_failure);

  std::span<const Pieces> Meet(Pieces mine, const BoundsOf& bounds) override;
  void Part() override;
  void Abort() override;

 private:
  // Bytes on their way to a rank elsewhere, and from it: the sizes of the pieces, then the pieces.
  struct Exchange;
  Status ExchangeWithOthers(const Pieces& mine, const BoundsOf& bounds);
  void GiveUpOnLocal(std::vector<size_t> late);  // of this host's ranks

  const std::shared_ptr<MeetingPlace> place_;
  const std::vector<size_t> local_;
  const size_t place_here_;  // of this rank, among them
  const std::shared_ptr<Lanes> lanes_;
  const std::function<void(Status)> on_failure_;
  std::vector<Pieces> all_;                      // of the last meeting
  std::vector<std::vector<std::byte>> arrived_;  // by rank; what all_ points into
};

}  // namespace fathom
