#include "backends.h"

namespace fathom {
namespace {

Status NoCuda() {
  return Unimplemented(
      "this fathom was built without CUDA: build it where the CUDA toolkit 13.0 or later is "
      "installed (nvcc in PATH or /usr/local/cuda)");
}

}  // namespace

Status AddGpus(std::string_view, int, Hosts*, Backend&) {
  return NoCuda();
}

Result<std::string> CudaOpsFor(int) {
  return NoCuda();
}

Result<GpuMachine> MeasureGpu(int, int64_t) {
  return NoCuda();
}

}  // namespace fathom
