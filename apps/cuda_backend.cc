#include "backends.h"
#include "base/log.h"
#include "cuda/device.h"
#include "cuda/peak.h"
#include "parallel/peer.h"

namespace fathom {

Status AddGpus(std::string_view name, int first, Backend& backend) {
  const auto activations =
      name.ends_with("-fp8") ? Fp8Activations::kQuantized : Fp8Activations::kExact;
  std::vector<CudaDevice*> gpus;
  for (int rank = 0; rank < backend.layout.world(); ++rank) {
    Result<std::unique_ptr<CudaDevice>> opened = CudaDevice::Open(first + rank);
    if (!opened.ok() && rank > 0) {
      return opened.status().WithContext(
          fmt::format("--pipeline-parallel-size {} x --data-parallel-size {} x "
                      "--tensor-parallel-size {}",
                      backend.layout.pipeline, backend.layout.data, backend.layout.tensor));
    }
    std::unique_ptr<CudaDevice> device = TRY(std::move(opened));
    const Ops& ops = name.starts_with("cuda-portable") ? CudaPortableOps(activations)
                                                       : CudaOps(*device, activations);
    if (backend.ops != nullptr && backend.ops != &ops) {
      return InvalidArgument("GPUs {} and {} are of different kinds: ranks need equal ones", first,
                             first + rank);
    }
    backend.ops = &ops;
    gpus.push_back(device.get());
    backend.devices.push_back(std::move(device));
  }
  backend.joined = TRY(JoinedRanks::Join(backend.layout, PeerCommunicator::Among(std::move(gpus))));
  backend.peer_bytes = PeerBytes(backend.layout);
  return {};
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
