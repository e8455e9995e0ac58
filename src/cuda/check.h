// Every CUDA call is checked: a failure is a fault of the device or a bug, and ends the process.
// The message tells the op, its shape and the step (base/activity.h).
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/check.h"

namespace fathom {
// "CUDA: invalid argument"; of kernels' own faults, also that one enqueued before is the cause.
std::string CudaErrorText(cudaError_t error);
}  // namespace fathom

#define CUDA_CHECK(call)                                                                     \
  do {                                                                                       \
    const cudaError_t cuda_check_error = (call);                                             \
    CHECK(cuda_check_error == cudaSuccess, "{}", ::fathom::CudaErrorText(cuda_check_error)); \
  } while (false)
