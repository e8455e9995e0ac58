// A GPU as a device.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "base/numa_node.h"
#include "base/status.h"
#include "cuda/arena.h"
#include "cuda/gpu.h"
#include "cuda/scatter.h"
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
  std::span<const int> near_cpus() const override { return near_.cpus; }
  const std::string& where_threads_run() const { return near_.remark; }  // NearCpus
  int64_t FreeBytes() const override;
  std::unique_ptr<DeviceMemory> Allocate(size_t bytes) override;
  void Seal() override { arena_->Seal(); }
  void Upload(const TensorView& to, std::span<const std::byte> from) override;
  void Download(std::span<std::byte> to, const TensorView& from) override;

  Status status() const override { return gpu_.status(); }
  void Abandon(const std::string& why) override { gpu_.Fail(cudaErrorLaunchTimeout, why); }
  void BeginStep(uint64_t step) override { stream_->BeginStep(step); }
  uint64_t Mark() override;
  bool Passed(uint64_t mark) override;
  void WaitFor(uint64_t mark) override;
  bool records() const override { return records_ && !stream_->watches_ops(); }
  void RecordOrReplay(uint64_t key, const std::function<void()>& enqueue) override;

  // From here on RecordOrReplay() is a call. REQUIRES: nothing was recorded.
  void RecordNothing() { records_ = false; }

  // To any address of the device; as Upload.
  void UploadBytes(void* to, std::span<const std::byte> from);
  void FlushSmallCopies(cudaStream_t stream);
  // Those before that mark; none of a GPU that failed.
  void DeliverDownloads(uint64_t up_to = UINT64_MAX);

  Gpu& gpu() { return gpu_; }
  int multiprocessors() const { return gpu_.multiprocessors(); }
  bool is_hopper() const { return gpu_.is_hopper(); }

 private:
  explicit CudaDevice(int gpu);

  struct PendingDownload {
    std::span<std::byte> to;
    size_t offset;  // of downloads_
    uint64_t mark;  // the first one after it
  };

  void UploadSmall(void* to, std::span<const std::byte> from);
  void CopySmall(const SmallCopy& copy);
  // What `enqueue` does; null if the GPU fails.
  cudaGraphExec_t Record(const std::function<void()>& enqueue);
  // A place in downloads_ that no pending download needs.
  size_t DownloadOffset(size_t bytes);

  Gpu gpu_;
  const NearCpus near_;
  std::string name_;
  std::unique_ptr<CudaArena> arena_;
  std::unique_ptr<CudaStream> stream_;
  std::unique_ptr<UploadStaging> uploads_;
  SmallCopies small_copies_;  // not yet enqueued
  std::unique_ptr<PinnedMemory> downloads_;
  size_t downloads_head_ = 0;
  std::deque<PendingDownload> pending_;
  uint64_t next_mark_ = 1;
  std::array<cudaEvent_t, kMaxMarks> marks_{};
  std::array<int64_t, kMaxMarks> mark_steps_{};
  std::map<uint64_t, cudaGraphExec_t> graphs_;  // null: called once
  bool records_ = true;
};

}  // namespace fathom
