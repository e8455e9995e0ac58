// The CPU as a device: its memory is the host's.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/activity.h"
#include "base/first_failure.h"
#include "base/machine_memory.h"
#include "cpu/cpu_stream.h"
#include "tensor/buffer.h"
#include "tensor/device.h"

namespace fathom {

class CpuDevice : public Device {
 public:
  // `commit`: memory is the process's from the start, not from when it is first written.
  // `cores`: those that it shares with others, if it does.
  explicit CpuDevice(int threads, bool commit = false, std::shared_ptr<SharedCores> cores = nullptr)
      : stream_(threads, std::move(cores)), commit_(commit) {}

  std::string_view name() const override { return "cpu"; }
  CpuStream& stream() override { return stream_; }
  void BindThread() override {}
  // All that the process may have: the operating system finds room.
  int64_t FreeBytes() const override { return UsableMemoryBytes(); }
  std::unique_ptr<DeviceMemory> Allocate(size_t bytes) override {
    return std::make_unique<Memory>(bytes, commit_);
  }
  void Seal() override {}
  void Upload(const TensorView& to, std::span<const std::byte> from) override {
    CHECK(to.contiguous() && from.size() == Bytes(to));
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
  }
  void Download(std::span<std::byte> to, const TensorView& from) override {
    CHECK(from.contiguous() && to.size() == Bytes(from));
    if (!to.empty()) std::memcpy(to.data(), from.data(), to.size());
  }
  // A CPU does not fail, but what its ranks wait for may.
  Status status() const override { return failure_.status(); }
  void Abandon(const std::string& why) override { failure_.Set(Internal("{}", why)); }
  void BeginStep(uint64_t step) override { current_activity.step = static_cast<int64_t>(step); }
  uint64_t Mark() override { return 0; }
  bool Passed(uint64_t) override { return true; }
  void WaitFor(uint64_t) override {}
  bool records() const override { return false; }
  void RecordOrReplay(uint64_t, const std::function<void()>& enqueue) override { enqueue(); }

 private:
  class Memory final : public DeviceMemory {
   public:
    Memory(size_t bytes, bool commit) : buffer_(bytes) {
      if (commit) buffer_.Commit();
    }
    std::byte* data() const override { return buffer_.data(); }
    size_t size() const override { return buffer_.size(); }

   private:
    Buffer buffer_;
  };
  static size_t Bytes(const TensorView& view) {
    return static_cast<size_t>(view.elements()) * ByteSize(view.dtype());
  }

  CpuStream stream_;
  const bool commit_;
  FirstFailure failure_;
};

}  // namespace fathom
