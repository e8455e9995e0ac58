// The CUDA driver's functions that the runtime has no name for, found at run time: the binary
// starts on machines without a driver. They are the process's, the same for every GPU.
#pragma once

#include <cuda.h>

#include "base/check.h"

namespace fathom {

struct DriverFunctions {
  decltype(&cuGetErrorString) GetErrorString;
  decltype(&cuMemGetAllocationGranularity) MemGetAllocationGranularity;
  decltype(&cuMemAddressReserve) MemAddressReserve;
  decltype(&cuMemAddressFree) MemAddressFree;
  decltype(&cuMemCreate) MemCreate;
  decltype(&cuMemRelease) MemRelease;
  decltype(&cuMemMap) MemMap;
  decltype(&cuMemUnmap) MemUnmap;
  decltype(&cuMemSetAccess) MemSetAccess;
};

// REQUIRES: a driver (OpenCudaDevice checks it first).
const DriverFunctions& Driver();
const char* DriverError(CUresult result);

}  // namespace fathom

#define CU_CHECK(call)                                        \
  do {                                                        \
    const CUresult cu_check_result = (call);                  \
    CHECK(cu_check_result == CUDA_SUCCESS, "CUDA driver: {}", \
          ::fathom::DriverError(cu_check_result));            \
  } while (false)
