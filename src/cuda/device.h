// A GPU as a device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "cuda/arena.h"
#include "cuda/staging.h"
#include "cuda/stream.h"
#include "tensor/device.h"

namespace fathom {

// THREAD: one at a time; each calls BindThread() first.
class CudaDevice final : public Device {
 public:
  // kUnavailable, with what to do about it, when there is no driver, an old one, or no such GPU.
  static Result<std::unique_ptr<CudaDevice>> Open(int gpu);
  ~CudaDevice() override;

  std::string_view name() const override { return name_; }  // "NVIDIA H200"
  CudaStream& stream() override { return *stream_; }
  void BindThread() override;
  int64_t FreeBytes() const override;
  std::unique_ptr<DeviceMemory> Allocate(size_t bytes) override;
  void Upload(const TensorView& to, std::span<const std::byte> from) override;
  void Download(std::span<std::byte> to, const TensorView& from) override;

  // To any address of the device; as Upload.
  void UploadBytes(void* to, std::span<const std::byte> from);
  void DeliverDownloads();

  int multiprocessors() const { return multiprocessors_; }
  // Hopper (compute capability 9.0), which the fast kernels are made for.
  bool is_hopper() const { return major_ == 9 && minor_ == 0; }

 private:
  explicit CudaDevice(int gpu);

  struct PendingDownload {
    std::span<std::byte> to;
    const std::byte* from;
  };

  int gpu_;
  std::string name_;
  int multiprocessors_ = 0, major_ = 0, minor_ = 0;
  std::unique_ptr<CudaArena> arena_;
  std::unique_ptr<CudaStream> stream_;
  std::unique_ptr<UploadStaging> uploads_;
  std::unique_ptr<PinnedMemory> downloads_;
  size_t downloads_used_ = 0;
  std::vector<PendingDownload> pending_;
};

}  // namespace fathom
