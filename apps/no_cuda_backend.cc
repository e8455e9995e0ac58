#include "backends.h"

namespace fathom {

Result<Backend> MakeCudaBackend(Fp8Activations, int) {
  return Unimplemented(
      "this fathom was built without CUDA: build it where the CUDA toolkit 13.0 or later is "
      "installed (nvcc in PATH or /usr/local/cuda)");
}

}  // namespace fathom
