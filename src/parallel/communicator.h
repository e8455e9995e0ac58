// The ranks that an op's result is made of.
#pragma once

namespace fathom {

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
  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  const int rank_, size_;
};

}  // namespace fathom
