#include "backends.h"
#include "base/log.h"
#include "cuda/device.h"
#include "cuda/peak.h"

namespace fathom {

Result<CudaBackend> MakeCudaBackend(std::string_view name, int gpu) {
  const auto activations =
      name.ends_with("-fp8") ? Fp8Activations::kQuantized : Fp8Activations::kExact;
  const bool portable = name.starts_with("cuda-portable");
  std::unique_ptr<CudaDevice> device = TRY(CudaDevice::Open(gpu));
  const Ops& ops = portable ? CudaPortableOps(activations) : CudaOps(*device, activations);
  return CudaBackend{&ops, std::move(device)};
}

Result<std::string> CudaOpsFor(int gpu) {
  const std::unique_ptr<CudaDevice> device = TRY(CudaDevice::Open(gpu));
  if (device->is_hopper()) return std::string("cuda-fp8");
  LOG_INFO("{}: --ops cuda, because the kernels of cuda-fp8 are for Hopper GPUs", device->name());
  return std::string("cuda");
}

Result<GpuMachine> MeasureGpu(int gpu, int64_t read_bytes) {
  const std::unique_ptr<CudaDevice> device = TRY(CudaDevice::Open(gpu));
  const CudaPeaks peaks = MeasureCudaPeaks(*device, read_bytes);
  return GpuMachine{.name = std::string(device->name()),
                    .driver = CudaDriverVersion(),
                    .read_bandwidth = peaks.read_bandwidth,
                    .fp32_peak = peaks.fp32,
                    .bf16_peak = peaks.bf16,
                    .fp8_peak = peaks.fp8};
}

}  // namespace fathom
