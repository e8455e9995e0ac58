#include "backends.h"

#include <algorithm>
#include <cstdlib>

#include "cpu/cpu_count.h"
#include "cpu/cpu_device.h"
#include "cpu/cpu_features.h"
#include "parallel/shared_memory.h"

namespace fathom {

namespace {

// A table that runs on CPUs, by name.
Result<const Ops*> CpuTable(std::string_view name, std::string_view quantization) {
  if (const auto format = TRY(ParseQuantization(quantization))) {
    if (name == "cpu") return &CpuIntegerOps(*format);
    return InvalidArgument("--quantization {} is for CPUs, with --ops cpu or none: not for {}",
                           quantization, name);
  }
  const auto activations =
      name.ends_with("-fp8") ? Fp8Activations::kQuantized : Fp8Activations::kExact;
  if (name == "cpu" || name == "cpu-fp8") return &CpuOps(activations);
  if (name == "reference" || name == "reference-fp8") return &ReferenceOps(activations);
  if (name == "cpu-bf16" && HasBf16Dot()) return &CpuBF16Ops();
  if (name == "cpu-bf16") {
    return InvalidArgument(
        "--ops cpu-bf16: this CPU has no AVX512_BF16, or --cpu-instructions forbids it; --ops cpu "
        "runs anywhere");
  }
  return InvalidArgument(
      "--ops {}: it is cpu, cpu-bf16, cpu-fp8, cuda, cuda-fp8, cuda-portable, cuda-portable-fp8, "
      "reference or reference-fp8",
      name);
}

bool IsCudaTable(std::string_view name) {
  return name == "cuda" || name == "cuda-fp8" || name == "cuda-portable" ||
         name == "cuda-portable-fp8";
}

}  // namespace

std::vector<EngineRank> Backend::Ranks() const {
  std::vector<EngineRank> ranks;
  for (size_t i = 0; i < devices.size(); ++i) {
    const int rank = first_rank + static_cast<int>(i);
    ranks.push_back({.device = devices[i].get(),
                     .shard = Shard::OfRank(layout, rank, joined.Of(rank)),
                     .peer_bytes = peer_bytes});
  }
  return ranks;
}

Result<Backend> MakeBackend(std::string_view name, const BackendSettings& settings, Hosts* hosts) {
  const int gpu = settings.gpu, world = settings.layout.world();
  if (gpu >= 0 && !name.starts_with("cuda")) {
    return InvalidArgument(
        "--gpu {}: --ops {} runs on the CPU; say --device cuda (or an --ops of CUDA), or leave "
        "--gpu out",
        gpu, name);
  }
  const int here = hosts == nullptr ? world : hosts->ranks_each();
  Backend backend{.layout = settings.layout,
                  .first_rank = hosts == nullptr ? 0 : hosts->index() * here};
  if (IsCudaTable(name) && settings.quantization == "none") {
    TRY(AddGpus(name, std::max(gpu, 0), hosts, backend));
    return backend;
  }
  constexpr int kMostRanks = 1024;
  if (world > kMostRanks) {
    return InvalidArgument("{} ranks on a CPU: at most {} are possible", world, kMostRanks);
  }
  backend.ops = TRY(CpuTable(name, settings.quantization));
  const int threads = settings.threads == 0 ? UsableCpus() : settings.threads;
  // Ranks of a stage work at the same time. Stages take turns or not, as there are requests: who
  // works alone has the others' cores.
  const int at_work = std::min(settings.layout.stage_ranks(), here);
  const auto cores = here == 1 ? nullptr : std::make_shared<SharedCores>(threads);
  for (int rank = 0; rank < here; ++rank) {
    backend.devices.push_back(std::make_unique<CpuDevice>(
        name.starts_with("reference") ? 1 : std::max(1, threads / at_work), settings.commit_memory,
        cores));
  }
  if (hosts == nullptr) {
    backend.joined = TRY(JoinedRanks::Join(settings.layout, SharedMemoryCommunicator::GroupOf));
    return backend;
  }
  backend.joined = TRY(JoinedRanks::Join(
      settings.layout, [hosts](std::span<const int> ranks) { return hosts->GroupOf(ranks); }));
  return backend;
}

Result<std::string> OpsFor(const BackendSettings& settings) {
  const std::string &device = settings.device, &ops = settings.ops;
  // Loading a kernel while another rank's waits for this one could hang both.
  if (settings.layout.world() > 1) setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/1);
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
