#include "cuda/staging.h"

#include "cuda/check.h"
#include "cuda/gpu.h"

namespace fathom {

PinnedMemory::PinnedMemory(size_t bytes) : size_(bytes) {
  CUDA_CHECK(cudaMallocHost(reinterpret_cast<void**>(&data_), bytes));
}

PinnedMemory::~PinnedMemory() {
  CUDA_CHECK(cudaFreeHost(data_));
}

UploadStaging::UploadStaging() : memory_(kChunk * kChunks) {
  for (cudaEvent_t& event : copied_) {
    CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
}

UploadStaging::~UploadStaging() {
  for (cudaEvent_t event : copied_) CUDA_CHECK(cudaEventDestroy(event));
}

std::byte* UploadStaging::Reserve(size_t bytes, cudaStream_t stream) {
  CHECK(bytes <= kChunk, "staging {} bytes", bytes);
  if (used_ + bytes > kChunk) {
    Gpu& gpu = Gpu::OfThread();
    gpu.Check(cudaEventRecord(copied_[static_cast<size_t>(current_)], stream));
    current_ = (current_ + 1) % kChunks;
    used_ = 0;
    // An event that was never recorded is done.
    gpu.Check(cudaEventSynchronize(copied_[static_cast<size_t>(current_)]));
  }
  std::byte* at = memory_.data() + static_cast<size_t>(current_) * kChunk + used_;
  used_ += (bytes + 63) / 64 * 64;
  return at;
}

}  // namespace fathom
