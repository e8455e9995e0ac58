#include "parallel/shared_memory.h"

#include <barrier>
#include <utility>

#include "base/check.h"

namespace fathom {

struct SharedMemoryCommunicator::Place {
  explicit Place(int size) : brought(static_cast<size_t>(size)), all(size) {}
  std::vector<const void*> brought;  // each rank writes its own, before it waits
  std::barrier<> all;
};

std::vector<std::unique_ptr<SharedMemoryCommunicator>> SharedMemoryCommunicator::Group(int size) {
  CHECK(size > 0);
  const auto place = std::make_shared<Place>(size);
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

std::span<const void* const> SharedMemoryCommunicator::Meet(const void* mine) {
  place_->brought[static_cast<size_t>(rank())] = mine;
  place_->all.arrive_and_wait();
  return place_->brought;
}

void SharedMemoryCommunicator::Part() {
  place_->all.arrive_and_wait();
}

}  // namespace fathom
