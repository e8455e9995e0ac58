#include "cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/check.h"

namespace fathom {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Through the runtime, so that nothing links against the driver's library. The same for every GPU.
Encode FindEncode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
  CHECK(error == cudaSuccess && found == cudaDriverEntryPointSuccess,
        "the CUDA driver has no cuTensorMapEncodeTiled (needs driver 580 or newer): {}",
        cudaGetErrorString(error));
  return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap MakeTensorMap(const TensorMapSpec& spec) {
  static const Encode encode = FindEncode();
  const size_t rank = spec.sizes.size();
  CHECK(rank >= 1 && rank <= 5 && spec.strides.size() == rank - 1 && spec.box.size() == rank);
  uint64_t strides[5] = {};
  std::copy(spec.strides.begin(), spec.strides.end(), strides);
  const uint32_t steps[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, spec.type, static_cast<uint32_t>(rank), const_cast<void*>(spec.data),
             spec.sizes.begin(), strides, spec.box.begin(), steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             spec.swizzle, spec.promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled: error {} (rank {}, data {})",
        static_cast<int>(result), rank, spec.data);
  return map;
}

}  // namespace fathom
