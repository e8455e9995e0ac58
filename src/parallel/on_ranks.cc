#include "parallel/on_ranks.h"

#include <thread>
#include <vector>

namespace fathom {

Status OnRanks(int ranks, const std::function<Status(int rank)>& body) {
  if (ranks == 1) return body(0);
  std::vector<Status> statuses(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { statuses[static_cast<size_t>(rank)] = body(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  for (Status& status : statuses) TRY(std::move(status));
  return {};
}

}  // namespace fathom
