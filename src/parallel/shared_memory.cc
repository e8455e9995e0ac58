#include "parallel/shared_memory.h"

#include "base/check.h"

namespace fathom {

std::vector<std::unique_ptr<SharedMemoryCommunicator>> SharedMemoryCommunicator::Group(int size) {
  CHECK(size > 0);
  const auto place = std::make_shared<MeetingPlace>(static_cast<size_t>(size));
  std::vector<std::unique_ptr<SharedMemoryCommunicator>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back(new SharedMemoryCommunicator(rank, size, place));
  }
  return ranks;
}

Result<std::vector<std::unique_ptr<Communicator>>> SharedMemoryCommunicator::GroupOf(
    std::span<const int> ranks) {
  std::vector<std::unique_ptr<Communicator>> members;
  for (auto& member : Group(static_cast<int>(ranks.size()))) members.push_back(std::move(member));
  return members;
}

std::span<const MeetingRanks::Pieces> SharedMemoryCommunicator::Meet(Pieces mine, const BoundsOf&) {
  place_->brought[static_cast<size_t>(rank())] = std::move(mine);
  std::vector<size_t> late;
  const bool all_here = place_->Arrive(static_cast<size_t>(rank()), Until(), late);
  if (!late.empty()) GiveUpOn(late);
  if (!all_here) return {};
  return place_->brought;
}

void SharedMemoryCommunicator::Part() {
  std::vector<size_t> late;
  place_->Leave(static_cast<size_t>(rank()), Until(), late);
  if (!late.empty()) GiveUpOn(late);
}

}  // namespace fathom
