// What requests hold of the server's memory: bodies, what is made of them, and answers that are not
// sent yet. Counted when it comes, never when it is announced.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <utility>

#include "base/status.h"

namespace fathom {

// Of all requests together. THREAD: any.
class MemoryBudget {
 public:
  // Requests that hold more than this share it with each other, and leave the rest to small ones.
  static constexpr size_t kSmallBytes = size_t{256} << 10;

  explicit MemoryBudget(size_t limit) : limit_(limit) {}
  size_t used() const { return used_; }

 private:
  friend class MemoryClaim;
  bool Take(size_t bytes, bool small) {
    const size_t limit = small ? limit_ : limit_ - limit_ / 4;
    if (used_.fetch_add(bytes) + bytes <= limit) return true;
    used_ -= bytes;
    return false;
  }

  const size_t limit_;
  std::atomic<size_t> used_{0};
};

// One request's part, given back at the end. THREAD: one at a time.
class MemoryClaim {
 public:
  explicit MemoryClaim(MemoryBudget& budget) : budget_(budget) {}
  ~MemoryClaim() { Shrink(held_); }
  MemoryClaim(const MemoryClaim&) = delete;

  // kResourceExhausted beyond the request's own limit, kUnavailable beyond everybody's.
  Status Grow(size_t bytes) {
    if (bytes > limit_ || held_ > limit_ - bytes) {
      return failure_ = ResourceExhausted(
                 "The request takes more than {} bytes of memory to read: shorten it.", limit_);
    }
    if (!budget_.Take(bytes, held_ + bytes <= MemoryBudget::kSmallBytes)) {
      return failure_ = Unavailable("Too many large requests at once: try again in a moment.");
    }
    held_ += bytes;
    peak_ = std::max(peak_, held_);
    return {};
  }
  void Shrink(size_t bytes) {
    held_ -= bytes;
    budget_.used_ -= bytes;
  }
  // Gives everything back, and lifts the limit.
  void Reset() {
    Shrink(held_);
    limit_ = std::numeric_limits<size_t>::max();
  }
  // From now on: what is held already counts.
  void SetLimit(size_t bytes) { limit_ = bytes; }
  const Status& failure() const { return failure_; }  // of Grow, the last one
  size_t held() const { return held_; }
  size_t peak() const { return peak_; }

 private:
  MemoryBudget& budget_;
  size_t limit_ = std::numeric_limits<size_t>::max();
  size_t held_ = 0, peak_ = 0;
  Status failure_;
};

}  // namespace fathom
