// The op tables that this binary was linked with, by name.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/assembly.h"
#include "hosts/hosts.h"
#include "ops/ops.h"
#include "parallel/layout.h"
#include "parallel/rank_groups.h"
#include "tensor/device.h"

namespace fathom {

// A table, and a device for each rank of this host with what it meets the others through: in the
// order of ParallelLayout.
struct Backend {
  const Ops* ops = nullptr;
  std::vector<std::unique_ptr<Device>> devices;
  JoinedRanks joined;
  ParallelLayout layout;
  int first_rank = 0;     // of this host's
  size_t peer_bytes = 0;  // EngineRank

  std::vector<EngineRank> Ranks() const;
};

// What commands say of a backend: engine_flags.h.
struct BackendSettings {
  std::string device = "cpu";  // or "cuda"; empty: that of `ops`
  std::string ops;             // MakeBackend; empty: the device's
  std::string quantization = "none";
  std::string kv_cache_dtype = "auto";  // ParseKvCacheDType
  int gpu = -1;                         // -1: not given, the first one if one is used
  int threads = 0;                      // 0: one per core
  bool commit_memory = false;           // of CPUs: CpuDevice
  ParallelLayout layout;
};

inline constexpr char kBackendHelp[] =
    "cpu, cuda: FP8 weights meet activations as they are; cpu-bf16: activations and KV cache in "
    "BF16, on CPUs with AVX512_BF16, faster for prompts and, without AMX, many requests; cpu-fp8, "
    "cuda-fp8: activations quantised to FP8; cuda-portable, cuda-portable-fp8: without kernels "
    "made for one GPU; reference, reference-fp8: plain fp32 on one thread, slow";
inline constexpr char kDeviceHelp[] =
    "Where the model runs: cpu or cuda, which without --ops means --ops cuda-fp8 on Hopper GPUs "
    "(H100, H200) and --ops cuda on others";
inline constexpr char kGpuHelp[] = "Which GPU --device cuda uses, or begins with; the first is 0";

inline constexpr char kKvCacheHelp[] =
    "Numbers of the KV cache: fp32, bf16 (half the memory), fp8 (latents in E4M3 with a scale per "
    "token, rotated keys in BF16: little more than a quarter), or auto: what suits --ops";

inline constexpr char kQuantizationHelp[] =
    "Quantise weights while they load, on --ops cpu: int8, int4, or none: as they are stored";

// Of the table `name`; the ranks of CPUs share `settings.threads`. `hosts`: that share the ranks;
// null: this one has all.
Result<Backend> MakeBackend(std::string_view name, const BackendSettings& settings,
                            Hosts* hosts = nullptr);

// Sets the table, and adds a GPU from `first` on for each rank of this host. cuda_backend.cc; in
// builds without CUDA no_cuda_backend.cc, which refuses.
Status AddGpus(std::string_view name, int first, Hosts* hosts, Backend& backend);
// What suits the GPU: cuda-fp8 where there are kernels for it, elsewhere cuda, which is as fast
// there and more accurate.
Result<std::string> CudaOpsFor(int gpu);

// What benchmarks say of a GPU, and measure of it.
struct GpuMachine {
  std::string name, driver;             // the newest CUDA that the driver speaks
  double read_bandwidth = 0;            // bytes per second
  double fp32_peak = 0, bf16_peak = 0;  // operations per second
  double fp8_peak = 0;                  // 0: the GPU has none
};
Result<GpuMachine> MeasureGpu(int gpu, int64_t read_bytes);

// The op table that `device` and `ops` name together.
Result<std::string> OpsFor(const BackendSettings& settings);

// "none" (nothing), "int8" or "int4": what weights become while they load.
Result<std::optional<WeightFormat>> ParseQuantization(std::string_view name);

// "auto" (nothing), "fp32", "bf16" or "fp8".
Result<std::optional<DType>> ParseKvCacheDType(std::string_view name);

}  // namespace fathom
