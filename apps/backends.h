// The op tables that this binary was linked with, by name.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "base/status.h"
#include "ops/ops.h"
#include "tensor/device.h"

namespace fathom {

struct Backend {
  const Ops* ops = nullptr;
  std::unique_ptr<Device> device;
};

inline constexpr char kBackendHelp[] =
    "cpu; cpu-fp8: FP8 weights meet activations quantised to FP8, as on GPUs; reference, "
    "reference-fp8: plain fp32 on one thread, slow";

inline constexpr char kKvCacheHelp[] =
    "Numbers of the KV cache: fp32, bf16 (half the memory), or auto: what suits --ops";

inline constexpr char kQuantizationHelp[] =
    "Quantise weights while they load, on --ops cpu: int8, int4, or none: as they are stored";

// `threads`: 0 for one per core. `quantization`: none, int8 or int4.
Result<Backend> MakeBackend(std::string_view name, int threads, std::string_view quantization);

// "auto" (nothing), "fp32" or "bf16".
Result<std::optional<DType>> ParseKvCacheDType(std::string_view name);

}  // namespace fathom
