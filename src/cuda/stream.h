// A CUDA stream, and what ops need to know of its device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "base/activity.h"
#include "cuda/op_times.h"
#include "tensor/device.h"

namespace fathom {

class CudaDevice;

class CudaStream final : public Stream {
 public:
  explicit CudaStream(CudaDevice& device);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  // Also delivers the downloads enqueued before.
  void Synchronize() override;

  // Until `event`, recorded on this stream at the end of `step`: what steps before it enqueued has
  // been waited for. REQUIRES: the GPU has not failed.
  void WaitFor(cudaEvent_t event, int64_t step);

  // For whoever enqueues: small copies that wait are enqueued first.
  cudaStream_t get();
  CudaDevice& device() const { return device_; }

  // The step that errors name.
  void BeginStep(uint64_t step) { current_activity.step = static_cast<int64_t>(step); }
  // Whether ops must be seen one by one, which a recorded graph prevents.
  bool watches_ops() const { return wait_for_each_ || op_times_ != nullptr; }
  // Null unless steps are to be timed.
  OpTimes* step_times() const { return step_times_.get(); }
  // After the launches of an op: if one failed, then the device did, with op, shape and step. With
  // FATHOM_CUDA_SYNC=1 in the environment waits for the op, so that a fault is named by its op.
  void CheckLaunch(const char* op, const TensorView& shape);

 private:
  CudaDevice& device_;
  cudaStream_t stream_ = nullptr;
  const bool wait_for_each_;  // FATHOM_CUDA_SYNC=1 in the environment
  // FATHOM_CUDA_TIMES=ops or steps: printed in the end.
  const std::unique_ptr<OpTimes> op_times_, step_times_;
};

}  // namespace fathom
