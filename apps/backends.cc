#include "backends.h"

#include <algorithm>

#include "cpu/cpu_device.h"
#include "cpu/cpu_features.h"

namespace fathom {

Result<Backend> MakeBackend(std::string_view name, int threads, int gpu,
                            std::string_view quantization) {
  if (gpu >= 0 && !name.starts_with("cuda")) {
    return InvalidArgument(
        "--gpu {}: --ops {} runs on the CPU; say --device cuda (or an --ops of CUDA), or leave "
        "--gpu "
        "out",
        gpu, name);
  }
  if (const auto format = TRY(ParseQuantization(quantization))) {
    if (name != "cpu") {
      return InvalidArgument("--quantization {} is for CPUs, with --ops cpu or none: not for {}",
                             quantization, name);
    }
    return Backend{&CpuIntegerOps(*format), std::make_unique<CpuDevice>(threads)};
  }
  const auto activations =
      name.ends_with("-fp8") ? Fp8Activations::kQuantized : Fp8Activations::kExact;
  if (name == "cpu" || name == "cpu-fp8") {
    return Backend{&CpuOps(activations), std::make_unique<CpuDevice>(threads)};
  }
  if (name == "cpu-bf16") {
    if (!HasBf16Dot()) {
      return InvalidArgument(
          "--ops cpu-bf16: this CPU has no AVX512_BF16, or --cpu-instructions forbids it; --ops "
          "cpu runs "
          "anywhere");
    }
    return Backend{&CpuBF16Ops(), std::make_unique<CpuDevice>(threads)};
  }
  if (name == "reference" || name == "reference-fp8") {
    return Backend{&ReferenceOps(activations), std::make_unique<CpuDevice>(1)};
  }
  if (name == "cuda" || name == "cuda-fp8" || name == "cuda-portable" ||
      name == "cuda-portable-fp8") {
    return MakeCudaBackend(name, std::max(gpu, 0));
  }
  return InvalidArgument(
      "--ops {}: it is cpu, cpu-bf16, cpu-fp8, cuda, cuda-fp8, cuda-portable, cuda-portable-fp8, "
      "reference or reference-fp8",
      name);
}

Result<std::string> OpsFor(const BackendSettings& settings) {
  const std::string &device = settings.device, &ops = settings.ops;
  if (ops.empty() && device == "cuda") return CudaOpsFor(std::max(settings.gpu, 0));
  if (ops.empty()) return std::string("cpu");
  if (ops.starts_with("cuda") != (device == "cuda") && !device.empty()) {
    return InvalidArgument(
        "--ops {} does not run on --device {}: --device cuda runs those of "
        "CUDA, --device cpu (the default) all others",
        ops, device);
  }
  return ops;
}

Result<std::optional<WeightFormat>> ParseQuantization(std::string_view name) {
  if (name == "none") return std::optional<WeightFormat>();
  if (name == "int8") return std::optional(WeightFormat::kInt8);
  if (name == "int4") return std::optional(WeightFormat::kInt4);
  return InvalidArgument("--quantization {}: it is none, int8 or int4", name);
}

Result<std::optional<DType>> ParseKvCacheDType(std::string_view name) {
  if (name == "auto") return std::optional<DType>();
  if (name == "fp32") return std::optional(DType::kF32);
  if (name == "bf16") return std::optional(DType::kBF16);
  if (name == "fp8") return std::optional(DType::kF8E4M3);
  return InvalidArgument("--kv-cache-dtype {}: it is auto, fp32, bf16 or fp8", name);
}

}  // namespace fathom
