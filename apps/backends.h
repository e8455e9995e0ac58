// The op tables that this binary was linked with, by name.
#pragma once

#include <memory>
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
    "cpu: every core; reference: plain fp32, one thread, slow; reference-fp8: the same with FP8 "
    "activations";

// `threads`: 0 for one per core.
Result<Backend> MakeBackend(std::string_view name, int threads);

}  // namespace fathom
