// Every CUDA call is checked. CUDA_CHECK is for start-up, where a failure ends the process: what a
// step calls goes through Gpu::Check (gpu.h), which makes a status of it.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/check.h"

namespace fathom {
// "CUDA: invalid argument"; of kernels' own faults, also that one enqueued before is the cause.
std::string CudaErrorText(cudaError_t error);
// Whether what was asked for is wrong, however well the device is.
bool IsBug(cudaError_t error);
}  // namespace fathom

#define CUDA_CHECK(call)                                                                     \
  do {                                                                                       \
    const cudaError_t cuda_check_error = (call);                                             \
    CHECK(cuda_check_error == cudaSuccess, "{}", ::fathom::CudaErrorText(cuda_check_error)); \
  } while (false)
