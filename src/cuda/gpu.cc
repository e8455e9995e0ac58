#include "cuda/gpu.h"

#include "base/activity.h"
#include "cuda/check.h"

namespace fathom {
namespace {

thread_local Gpu* gpu_of_thread = nullptr;

int Attribute(cudaDeviceAttr attribute, int ordinal) {
  int value = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, ordinal));
  return value;
}

}  // namespace

Gpu::Gpu(int ordinal)
    : ordinal_(ordinal),
      multiprocessors_(Attribute(cudaDevAttrMultiProcessorCount, ordinal)),
      major_(Attribute(cudaDevAttrComputeCapabilityMajor, ordinal)),
      minor_(Attribute(cudaDevAttrComputeCapabilityMinor, ordinal)) {
  BindThread();
  void* counter = nullptr;
  Check(cudaMalloc(&counter, sizeof(*work_counter_)));
  Check(cudaMemset(counter, 0, sizeof(*work_counter_)));
  Check(cudaStreamSynchronize(nullptr));  // other streams do not wait for it
  work_counter_ = static_cast<uint32_t*>(counter);
}

Gpu::~Gpu() {
  if (!failed()) cudaFree(work_counter_);  // nothing more is asked of one that failed
  if (gpu_of_thread == this) gpu_of_thread = nullptr;
}

Gpu& Gpu::OfThread() {
  CHECK(gpu_of_thread != nullptr, "this thread drives no GPU: BindThread() comes first");
  return *gpu_of_thread;
}

void Gpu::BindThread() {
  Check(cudaSetDevice(ordinal_));
  gpu_of_thread = this;
}

void Gpu::Fail(cudaError_t error) {
  Fail(error, CudaErrorText(error) + DescribeActivity());
}

void Gpu::Fail(cudaError_t error, const std::string& text) {
  if (failed()) return;
  CHECK(!IsBug(error), "{}", text);
  failure_.Set(Internal("GPU {}: {}", ordinal_, text));
}

void Gpu::SetSharedMemory(const void* kernel, size_t bytes) {
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)));
}

}  // namespace fathom
