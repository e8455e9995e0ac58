// The ranks that an op's result is made of.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace fathom {

// What a rank waits for others in, or has waited in last.
struct Meeting {
  static constexpr uint32_t kNumbers = 1 << 21;

  std::string_view op;            // empty: there was none
  int64_t tokens = 0, width = 0;  // of its capacity
  uint32_t number = 0;  // of the group's meetings, modulo kNumbers: ranks are at most one apart
};

// What a rank has in its hand of a group of ranks. Each kind of hardware has its own, as with
// streams: ops of a table know theirs. All ranks of a group call the same ops with it in the same
// order.
class Communicator {
 public:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Communicator() = default;
  // THREAD: any. A rank failed: what waits for it gives up, and what ranks come to means nothing
  // from here on. Of devices that do not fail nothing is to be done.
  virtual void Abort() {}
  // Of ranks that wait on the host; those of GPUs wait on these. Whoever has waited so long for
  // others calls `late` with their names, its own, op, shape and step, and gives up as Abort() says
  // once that returns. Before the ranks first meet. THREAD: `late` is called on the rank's.
  virtual void GiveUpAfter(double /*seconds*/, std::function<void(const Status&)> /*late*/) {}
  // If it can be told without asking a device. THREAD: any.
  virtual std::optional<Meeting> LastMeeting() const { return {}; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  // What the layout calls a rank of the group.
  int InLayout(int rank) const {
    return in_layout_.empty() ? rank : in_layout_[static_cast<size_t>(rank)];
  }
  void SetInLayout(std::vector<int> ranks) { in_layout_ = std::move(ranks); }

 private:
  const int rank_, size_;
  std::vector<int> in_layout_;  // empty: as in the group
};

}  // namespace fathom
