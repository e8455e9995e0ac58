// Where ranks that are threads of one process wait for each other.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "parallel/meeting_ranks.h"

namespace fathom {

class MeetingPlace {
 public:
  explicit MeetingPlace(size_t size) : brought(size), arrivals_(size) {}

  // Waits, asleep, until all are here. False if they have given up before that, or it is `until`:
  // then `late` gets who has not come, and nobody goes on before GiveUp().
  bool Arrive(size_t who, std::chrono::steady_clock::time_point until, std::vector<size_t>& late) {
    std::unique_lock lock(mutex_);
    return !gave_up_ && Wait(lock, who, until, late, [this] { return gave_up_; });
  }
  // Of a meeting to which all have come: waits until all have read what was brought. Those who have
  // given up wait, too: another may be reading what lies in this one's op.
  void Leave(size_t who, std::chrono::steady_clock::time_point until, std::vector<size_t>& late) {
    std::unique_lock lock(mutex_);
    Wait(lock, who, until, late, [this] { return gave_up_ && waited_enough_; });
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
  template <class Ends>
  bool Wait(std::unique_lock<std::mutex>& lock, size_t who,
            std::chrono::steady_clock::time_point until, std::vector<size_t>& late,
            const Ends& ends) {
    ++arrivals_[who];
    if (++here_ == brought.size() && !waited_enough_) {
      here_ = 0;
      ++meetings_;
      lock.unlock();  // who halts while it wakes the others must not keep them from giving up
      all_here_.notify_all();
      return true;
    }
    // Whoever came to a meeting that took place says so, whatever was given up meanwhile.
    const auto met = [this, now = meetings_] { return meetings_ != now; };
    if (all_here_.wait_until(lock, until, [&] { return met() || ends(); })) return met();
    waited_enough_ = true;
    for (size_t i = 0; i < arrivals_.size(); ++i) {
      if (arrivals_[i] < arrivals_[who]) late.push_back(i);
    }
    // The last has come since another found it late, who is about to say so.
    if (late.empty()) all_here_.wait(lock, [this] { return gave_up_; });
    return false;
  }

  std::mutex mutex_;
  std::condition_variable all_here_;
  // Guarded by mutex_:
  size_t here_ = 0;
  uint64_t meetings_ = 0;
  std::vector<uint64_t> arrivals_;  // of each
  bool waited_enough_ = false, gave_up_ = false;
};

}  // namespace fathom
