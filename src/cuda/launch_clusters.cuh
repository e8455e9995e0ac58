// Launching a kernel in clusters of blocks, which may start before the kernels before it have ended
// (launch_early.cuh). For sm_90 and up.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/gpu.h"

namespace fathom {

struct ClusterGrid {
  int64_t clusters = 1;
  int blocks = 1;  // of a cluster
  int threads = 0;
  size_t shared_bytes = 0;
};

// The kernel calls WaitForPriorKernels (fence.h) before it touches what others write or read.
template <class... Parameters, class... Arguments>
void LaunchClusters(void (*kernel)(Parameters...), const ClusterGrid& grid, cudaStream_t stream,
                    const Arguments&... arguments) {
  const auto blocks = static_cast<unsigned>(grid.blocks);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {blocks, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid.clusters) * blocks);
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  Gpu::OfThread().Check(cudaLaunchKernelEx(&config, kernel, arguments...));
}

}  // namespace fathom
