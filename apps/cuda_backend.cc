#include "backends.h"
#include "cuda/device.h"

namespace fathom {

Result<Backend> MakeCudaBackend(Fp8Activations activations, int gpu) {
  return Backend{&CudaOps(activations), TRY(CudaDevice::Open(gpu))};
}

}  // namespace fathom
