// Where tensors live, and how numbers get there and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "tensor/stream.h"
#include "tensor/tensor_view.h"

namespace fathom {

// A piece of a device's memory, zeroed; freed with its owner.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::byte* data() const = 0;
  virtual size_t size() const = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual Stream& stream() = 0;
  // A thread calls this before it first uses the device.
  virtual void BindThread() = 0;
  // CPUs that its threads run on (base/numa_node.h: OnCpus); none: any.
  virtual std::span<const int> near_cpus() const { return {}; }
  // Memory that can still be had.
  virtual int64_t FreeBytes() const = 0;
  virtual std::unique_ptr<DeviceMemory> Allocate(size_t bytes) = 0;
  // What is allocated from here on is a bug: a device is laid out at start-up.
  virtual void Seal() = 0;
  // In stream order. `from` is staged before this returns, so it may change at once.
  // REQUIRES: `to` contiguous, of equal size.
  virtual void Upload(const TensorView& to, std::span<const std::byte> from) = 0;
  // In stream order: `to` is written by the time the stream is synchronised, or a later mark is
  // waited for. REQUIRES: as Upload.
  virtual void Download(std::span<std::byte> to, const TensorView& from) = 0;

  // The first failure of the device, naming op, shape and step; OK while there was none. Since then
  // calls do nothing, and what was downloaded means nothing.
  virtual Status status() const = 0;
  // What was enqueued does not end: the device has failed, for this reason. THREAD: any.
  virtual void Abandon(const std::string& why) = 0;

  // The step that errors name from here on.
  virtual void BeginStep(uint64_t step) = 0;

  // Marks what was enqueued so far; WaitFor() returns once that has run, without waiting for what
  // was enqueued since. At most kMaxMarks may be waited for at a time.
  static constexpr int kMaxMarks = 16;
  virtual uint64_t Mark() = 0;
  virtual bool Passed(uint64_t mark) = 0;  // whether WaitFor() would return at once
  virtual void WaitFor(uint64_t mark) = 0;

  // Whether RecordOrReplay() is more than a call.
  virtual bool records() const = 0;
  // Enqueues what `enqueue` does: ops, no uploads, no downloads. The same key must stand for the
  // same ops on the same addresses with the same shapes. A device that records calls `enqueue` for
  // a key's first time, records its second, and then replays the record.
  virtual void RecordOrReplay(uint64_t key, const std::function<void()>& enqueue) = 0;
};

}  // namespace fathom
