#include "cuda/stream.h"

#include <cstdlib>
#include <string_view>

#include "cuda/check.h"
#include "cuda/device.h"

namespace fathom {
namespace {
bool Wanted(const char* variable, std::string_view wanted) {
  const char* value = std::getenv(variable);
  return value != nullptr && value == wanted;
}
std::unique_ptr<OpTimes> TimesIf(std::string_view wanted) {
  return Wanted("FATHOM_CUDA_TIMES", wanted) ? std::make_unique<OpTimes>() : nullptr;
}
}  // namespace

CudaStream::CudaStream(CudaDevice& device)
    : device_(device),
      wait_for_each_(Wanted("FATHOM_CUDA_SYNC", "1")),
      op_times_(TimesIf("ops")),
      step_times_(TimesIf("steps")) {
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

CudaStream::~CudaStream() {
  CUDA_CHECK(cudaStreamDestroy(stream_));
}

cudaStream_t CudaStream::get() {
  device_.FlushSmallCopies(stream_);
  return stream_;
}

void CudaStream::Synchronize() {
  if (!device_.gpu().failed()) device_.gpu().Check(cudaStreamSynchronize(get()));
  for (OpTimes* times : {op_times_.get(), step_times_.get()}) {
    if (times != nullptr && !device_.gpu().failed()) times->Collect();
  }
  device_.DeliverDownloads();
}

void CudaStream::WaitFor(cudaEvent_t event, int64_t step) {
  const cudaError_t error = cudaEventSynchronize(event);
  if (error == cudaSuccess) return;
  const int64_t last = current_activity.step;
  const std::string later = last > step ? fmt::format(" or later, up to {}", last) : "";
  device_.gpu().Fail(error, fmt::format("{} (in step {}{})", CudaErrorText(error), step, later));
}

void CudaStream::CheckLaunch(const char* op, const TensorView& shape) {
  if (op_times_ != nullptr) op_times_->After(op, stream_);
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess && wait_for_each_) error = cudaStreamSynchronize(stream_);
  if (error == cudaSuccess) return;
  device_.gpu().Fail(error, fmt::format("{} of {}: {}{}", op, shape.ToString(),
                                        CudaErrorText(error), DescribeActivity()));
}

}  // namespace fathom
