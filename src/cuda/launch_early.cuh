// Programmatic dependent launch: a kernel whose blocks may start before those before it have ended.
#pragma once

#include <cuda_runtime_api.h>

namespace fathom {

// The kernel calls WaitForPriorKernels (fence.h) before it touches what others write or read.
template <class... Parameters, class... Arguments>
cudaError_t LaunchEarly(void (*kernel)(Parameters...), dim3 blocks, int threads,
                        size_t shared_bytes, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace fathom
