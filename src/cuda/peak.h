// What this GPU can read and compute, measured.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/device.h"

namespace fathom {

struct CudaPeaks {
  double read_bandwidth = 0;  // bytes per second
  double fp32 = 0;            // operations per second, two to a multiply-add
  double bf16 = 0;            // by wgmma on Hopper, else by mma.sync
  double fp8 = 0;             // E4M3, by wgmma; 0 on other GPUs
};

// The best of five runs of each; reads `bytes`, which should be far more than the L2 holds.
CudaPeaks MeasureCudaPeaks(CudaDevice& device, int64_t bytes);

std::string CudaDriverVersion();  // "13.0": the newest CUDA that the driver speaks

}  // namespace fathom
