// Every CUDA call is checked: a failure is a fault of the device or a bug, and ends the process.
#pragma once

#include <cuda_runtime_api.h>

#include "base/check.h"

#define CUDA_CHECK(call)                                                                      \
  do {                                                                                        \
    const cudaError_t cuda_check_error = (call);                                              \
    CHECK(cuda_check_error == cudaSuccess, "CUDA: {}", cudaGetErrorString(cuda_check_error)); \
  } while (false)
