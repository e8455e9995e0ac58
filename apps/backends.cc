#include "backends.h"

#include "cpu/cpu_device.h"

namespace fathom {

Result<Backend> MakeBackend(std::string_view name, int threads) {
  if (name == "cpu") return Backend{&CpuOps(), std::make_unique<CpuDevice>(threads)};
  if (name == "reference" || name == "reference-fp8") {
    const auto mode = name == "reference" ? ReferenceMode::kFp32 : ReferenceMode::kEmulateFp8;
    return Backend{&ReferenceOps(mode), std::make_unique<CpuDevice>(1)};
  }
  return InvalidArgument("--ops {}: it is cpu, reference or reference-fp8", name);
}

}  // namespace fathom
