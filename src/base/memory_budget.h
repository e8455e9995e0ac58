// What requests hold of the server's memory: bodies, what is made of them, and answers that are not
// sent yet. Counted when it comes, never when it is announced.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>

#include "base/status.h"

namespace fathom {

// Of all requests together. THREAD: any.
class MemoryBudget {
 public:
  // Requests that hold more than this share it with each other, and leave the rest to small ones.
  static constexpr size_t kSmallBytes = size_t{256} << 10;

  // `of_client`: what those of one may hold.
  explicit MemoryBudget(size_t limit, size_t of_client = std::numeric_limits<size_t>::max())
      : limit_(limit), of_client_(of_client) {}
  size_t used() const { return used_; }

 private:
  friend class MemoryClaim;
  bool Take(size_t bytes, bool small) {
    const size_t limit = small ? limit_ : limit_ - limit_ / 4;
    if (used_.fetch_add(bytes) + bytes <= limit) return true;
    used_ -= bytes;
    return false;
  }

  const size_t limit_, of_client_;
  std::atomic<size_t> used_{0};
};

// What the requests of one client hold. THREAD: any.
class ClientMemory {
 public:
  size_t used() const { return used_; }

 private:
  friend class MemoryClaim;
  bool Take(size_t bytes, size_t limit) {
    if (used_.fetch_add(bytes) + bytes <= limit) return true;
    used_ -= bytes;
    return false;
  }

  std::atomic<size_t> used_{0};
};

// One request's part, given back at the end. THREAD: one at a time.
class MemoryClaim {
 public:
  explicit MemoryClaim(MemoryBudget& budget) : budget_(budget) {}
  ~MemoryClaim() { Reset(); }
  MemoryClaim(const MemoryClaim&) = delete;

  // From now on it counts as this client's too. REQUIRES: held() is 0.
  void CountFor(std::shared_ptr<ClientMemory> client) { client_ = std::move(client); }
  // kResourceExhausted beyond the request's own limit, kInvalidArgument beyond what it could ever
  // have, kUnavailable beyond the client's, which binds no small one, and beyond everybody's.
  Status Grow(size_t bytes) {
    if (bytes > limit_ || held_ - beside_ > limit_ - bytes) {
      return failure_ = ResourceExhausted(
                 "The request takes more than {} bytes of memory to read: shorten it, above all "
                 "its lists and objects, each value of which takes 24 bytes or more.",
                 limit_);
    }
    return Add(bytes);
  }
  // The same beside the request's own limit, for what is held briefly and bounded by who asks.
  Status GrowBeside(size_t bytes) {
    TRY(Add(bytes));
    beside_ += bytes;
    return {};
  }
  // What GrowBeside could ever give, on a server that does nothing else.
  size_t RoomBeside() const {
    const size_t most = std::max(std::min(budget_.of_client_, budget_.limit_ - budget_.limit_ / 4),
                                 MemoryBudget::kSmallBytes);
    return most - std::min(most, held_);
  }
  void ShrinkBeside(size_t bytes) { beside_ -= bytes, Shrink(bytes); }
  // For this request to take again. It counts until Reset: the allocator has what is freed, and the
  // system, for others, only once it was trimmed.
  void Shrink(size_t bytes) { held_ -= bytes; }
  // Gives everything back, and lifts the limit.
  void Reset() {
    budget_.used_ -= counted_;
    if (client_) client_->used_ -= counted_;
    held_ = counted_ = beside_ = asked_ = 0;
    limit_ = std::numeric_limits<size_t>::max();
  }
  // From now on: what is held already counts.
  void SetLimit(size_t bytes) { limit_ = bytes; }
  // For what comes beside it, as far as one client's share goes: beyond that waiting does not help.
  void RaiseLimit(size_t bytes) {
    limit_ = std::max(limit_, std::min(limit_ + bytes, budget_.of_client_));
  }
  // kInvalidArgument if a request could never have `all`, in several claims perhaps.
  Status CouldHave(size_t all) const {
    const size_t most = Most(all);
    if (all <= most) return {};
    return InvalidArgument(
        "This takes more than the {} bytes of memory that one request may have here: shorten it, "
        "or ask for fewer tokens, choices or log-probabilities.",
        most);
  }
  const Status& failure() const { return failure_; }  // of Grow, the last one
  // With what was last asked for beyond what counted already, whether it was given or not.
  size_t asked() const { return asked_; }
  size_t held() const { return held_; }
  size_t peak() const { return peak_; }

 private:
  static bool IsSmall(size_t all) { return all <= MemoryBudget::kSmallBytes; }
  size_t OfClient(size_t all) const {
    return IsSmall(all) ? std::numeric_limits<size_t>::max() : budget_.of_client_;
  }
  size_t Most(size_t all) const {
    return std::min(client_ ? OfClient(all) : budget_.limit_,
                    IsSmall(all) ? budget_.limit_ : budget_.limit_ - budget_.limit_ / 4);
  }
  bool limits() const { return limit_ < std::numeric_limits<size_t>::max(); }
  Status Add(size_t bytes) {
    if (held_ + bytes > counted_) TRY(Count(held_ + bytes));
    held_ += bytes;
    peak_ = std::max(peak_, held_);
    return {};
  }
  // REQUIRES: all > counted_.
  Status Count(size_t all) {
    asked_ = all;
    const size_t more = all - counted_;
    if (limits() && all > Most(all)) {  // what is read of a request: waiting would not help
      return failure_ = ResourceExhausted(
                 "The request takes more than the {} bytes of memory that this server has for one: "
                 "shorten it.",
                 Most(all));
    }
    if (const Status could = CouldHave(all); !could.ok()) return failure_ = could;
    if (client_ && !client_->Take(more, OfClient(all))) {
      return failure_ = Unavailable(
                 "Too many large requests of one client at once: try again when some have ended.");
    }
    if (!budget_.Take(more, IsSmall(all))) {
      if (client_) client_->used_ -= more;
      return failure_ = Unavailable("Too many large requests at once: try again in a moment.");
    }
    counted_ = all;
    return {};
  }

  MemoryBudget& budget_;
  std::shared_ptr<ClientMemory> client_;
  size_t limit_ = std::numeric_limits<size_t>::max();
  size_t held_ = 0, beside_ = 0;   // in all, and of that beside the limit
  size_t counted_ = 0, peak_ = 0;  // the most since Reset, and ever
  size_t asked_ = 0;
  Status failure_;
};

}  // namespace fathom
