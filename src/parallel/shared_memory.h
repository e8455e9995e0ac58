// Ranks that are threads of one process and share its memory: CPU ranks, and the reference of the
// others.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "parallel/communicator.h"

namespace fathom {

class SharedMemoryCommunicator final : public Communicator {
 public:
  // Those of a group of `size` ranks, which share what they meet in.
  static std::vector<std::unique_ptr<SharedMemoryCommunicator>> Group(int size);

  // For JoinedRanks.
  static Result<std::vector<std::unique_ptr<Communicator>>> GroupOf(std::span<const int> ranks);

  // Waits, asleep, until all ranks are here; then what each of them brought, in the order of ranks,
  // which may be read until Part(). THREAD: the rank's.
  std::span<const void* const> Meet(const void* mine);
  // Waits until all ranks have read what they wanted of it.
  void Part();

 private:
  struct Place;
  SharedMemoryCommunicator(int rank, int size, std::shared_ptr<Place> place)
      : Communicator(rank, size), place_(std::move(place)) {}

  std::shared_ptr<Place> place_;
};

}  // namespace fathom
