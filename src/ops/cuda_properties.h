// What the CUDA tables say of themselves beside their functions: builds without CUDA plan with it.
#pragma once

#include "ops/ops.h"

namespace fathom {

// No op of it can be run.
inline Ops CudaProperties(bool hopper) {
  return {.name = hopper ? "cuda-hopper" : "cuda-portable",
          .activation = DType::kBF16,
          .kv_cache = DType::kBF16,
          .quantized_copies = hopper,
          .context_chunk = 4096,
          .exchange_tokens = 4096,
          .limits = {.norm_width = 8192, .experts = 1024, .topk = 32, .ranks = 8}};
}

}  // namespace fathom
