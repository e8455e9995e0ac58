// Where tensors live, and how numbers get there and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "tensor/stream.h"
#include "tensor/tensor_view.h"

namespace fathom {

// A block of a device's memory, zeroed; freed with its owner.
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
  // Memory that can still be had.
  virtual int64_t FreeBytes() const = 0;
  virtual std::unique_ptr<DeviceMemory> Allocate(size_t bytes) = 0;
  // In stream order. `from` is staged before this returns, so it may change at once.
  // REQUIRES: `to` contiguous, of equal size.
  virtual void Upload(const TensorView& to, std::span<const std::byte> from) = 0;
  // In stream order: `to` is written by the time the stream is synchronised. REQUIRES: as Upload.
  virtual void Download(std::span<std::byte> to, const TensorView& from) = 0;
};

}  // namespace fathom
