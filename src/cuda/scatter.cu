// Small copies by one kernel, which reads and writes pinned host memory.
//   formula:       to[i] = from[i]
//   data mapping:  a block per copy
//   bytes, FLOPs:  up to 16 KiB each, over PCIe; no arithmetic
//   accumulator:   none
//   expected time: one launch and a round trip over PCIe, some 2.5 us
#include "cuda/scatter.h"

namespace fathom {
namespace {

constexpr int kThreads = 256;

template <class T>
__device__ void Copy(const SmallCopy& copy, uint32_t begin, uint32_t end) {
  for (uint32_t i = begin / sizeof(T) + threadIdx.x; i < end / sizeof(T); i += kThreads) {
    static_cast<T*>(copy.to)[i] = static_cast<const T*>(copy.from)[i];
  }
}

__global__ void Scatter(const __grid_constant__ SmallCopies copies) {
  const SmallCopy& copy = copies.items[blockIdx.x];
  const auto places = reinterpret_cast<uintptr_t>(copy.to) | reinterpret_cast<uintptr_t>(copy.from);
  const uint32_t whole = places % 4 == 0 ? copy.bytes / 4 * 4 : 0;
  Copy<uint32_t>(copy, 0, whole);
  Copy<uint8_t>(copy, whole, copy.bytes);
}

}  // namespace

cudaError_t LaunchScatter(const SmallCopies& copies, cudaStream_t stream) {
  Scatter<<<static_cast<unsigned>(copies.count), kThreads, 0, stream>>>(copies);
  return cudaGetLastError();
}

}  // namespace fathom
