// Small uploads by one kernel, which reads pinned host memory.
//   formula:       to[i] = from[i]
//   data mapping:  a block per upload
//   bytes, FLOPs:  up to 16 KiB each, over PCIe; no arithmetic
//   accumulator:   none
//   expected time: one launch and a round trip over PCIe, some 4 us; not measured
#include "cuda/check.h"
#include "cuda/scatter.h"

namespace fathom {
namespace {

constexpr int kThreads = 256;

__global__ void Scatter(const __grid_constant__ SmallUploads uploads) {
  const SmallUpload& upload = uploads.items[blockIdx.x];
  if (reinterpret_cast<uintptr_t>(upload.to) % 4 == 0) {
    const uint32_t words = upload.bytes / 4;
    for (uint32_t i = threadIdx.x; i < words; i += kThreads) {
      static_cast<uint32_t*>(upload.to)[i] = static_cast<const uint32_t*>(upload.from)[i];
    }
    for (uint32_t i = words * 4 + threadIdx.x; i < upload.bytes; i += kThreads) {
      static_cast<uint8_t*>(upload.to)[i] = static_cast<const uint8_t*>(upload.from)[i];
    }
    return;
  }
  for (uint32_t i = threadIdx.x; i < upload.bytes; i += kThreads) {
    static_cast<uint8_t*>(upload.to)[i] = static_cast<const uint8_t*>(upload.from)[i];
  }
}

}  // namespace

void LaunchScatter(const SmallUploads& uploads, cudaStream_t stream) {
  Scatter<<<static_cast<unsigned>(uploads.count), kThreads, 0, stream>>>(uploads);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace fathom
