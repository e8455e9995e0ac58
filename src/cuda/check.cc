#include "cuda/check.h"

#include <fmt/format.h>

namespace fathom {

std::string CudaErrorText(cudaError_t error) {
  // Of faults that end a context; a call tells those of work enqueued before it.
  const bool of_earlier_work =
      error == cudaErrorIllegalAddress || error == cudaErrorLaunchTimeout ||
      error == cudaErrorAssert ||
      (error >= cudaErrorHardwareStackError && error <= cudaErrorLaunchFailure);
  return fmt::format("CUDA: {}{}", cudaGetErrorString(error),
                     of_earlier_work ? " (in a kernel enqueued before; FATHOM_CUDA_SYNC=1 in the "
                                       "environment finds which)"
                                     : "");
}

bool IsBug(cudaError_t error) {
  return error == cudaErrorInvalidValue || error == cudaErrorInvalidConfiguration ||
         error == cudaErrorInvalidDeviceFunction || error == cudaErrorInvalidResourceHandle ||
         error == cudaErrorNoKernelImageForDevice || error == cudaErrorLaunchOutOfResources;
}

}  // namespace fathom
