// Where ranks that are threads of one process wait for each other.
#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

#include "parallel/meeting_ranks.h"

namespace fathom {

class MeetingPlace {
 public:
  explicit MeetingPlace(size_t size) : brought(size) {}

  // Waits, asleep, until all are here, or have given up: false.
  bool Arrive() {
    std::unique_lock lock(mutex_);
    if (gave_up_) return false;
    if (++here_ == brought.size()) {
      here_ = 0;
      ++meetings_;
      all_here_.notify_all();
      return true;
    }
    all_here_.wait(lock, [this, now = meetings_] { return gave_up_ || meetings_ != now; });
    return !gave_up_;
  }
  // THREAD: any.
  void GiveUp() {
    {
      std::lock_guard lock(mutex_);
      gave_up_ = true;
    }
    all_here_.notify_all();
  }

  std::vector<MeetingRanks::Pieces> brought;  // each rank writes its own, before it arrives

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  // Guarded by mutex_:
  size_t here_ = 0;
  uint64_t meetings_ = 0;
  bool gave_up_ = false;
};

}  // namespace fathom
