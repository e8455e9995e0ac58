#include "cuda/driver.h"

#include "cuda/check.h"

namespace fathom {
namespace {

constexpr unsigned int kVersion = 12000;  // the functions are those of CUDA 12.0

template <class Function>
void Find(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result));
  CHECK(result == cudaDriverEntryPointSuccess && found != nullptr, "the CUDA driver has no {}",
        name);
  function = reinterpret_cast<Function>(found);
}

DriverFunctions FindAll() {
  DriverFunctions d{};
  Find("cuGetErrorString", d.GetErrorString);
  Find("cuMemGetAllocationGranularity", d.MemGetAllocationGranularity);
  Find("cuMemAddressReserve", d.MemAddressReserve);
  Find("cuMemAddressFree", d.MemAddressFree);
  Find("cuMemCreate", d.MemCreate);
  Find("cuMemRelease", d.MemRelease);
  Find("cuMemMap", d.MemMap);
  Find("cuMemUnmap", d.MemUnmap);
  Find("cuMemSetAccess", d.MemSetAccess);
  return d;
}

}  // namespace

const DriverFunctions& Driver() {
  static const DriverFunctions functions = FindAll();
  return functions;
}

const char* DriverError(CUresult result) {
  const char* text = nullptr;
  return Driver().GetErrorString(result, &text) == CUDA_SUCCESS ? text : "unknown error";
}

}  // namespace fathom
