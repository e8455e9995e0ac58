// Descriptors of tensors for the copy engine (tma.h), made on the host.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <initializer_list>

namespace fathom {

struct TensorMapSpec {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const void* data = nullptr;               // aligned to 16 bytes
  std::initializer_list<uint64_t> sizes;    // elements, innermost first; 1 to 5 of them
  std::initializer_list<uint64_t> strides;  // bytes, of all but the innermost; multiples of 16
  std::initializer_list<uint32_t> box;      // elements, each at most 256
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;  // 128B: box[0] is at most 128 bytes
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
};

// Makes a descriptor. Needs the driver, but no context. A descriptor that cannot be is a bug and
// stops the process.
CUtensorMap MakeTensorMap(const TensorMapSpec& spec);

}  // namespace fathom
