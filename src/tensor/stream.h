// The order of work on a device.
#pragma once

namespace fathom {

// Ops enqueued on one stream run in order. A CPU stream runs each op at once, on the calling thread
// and its pool.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void Synchronize() = 0;  // returns once everything enqueued has run
};

}  // namespace fathom
