#include "host_facts.h"

#include <fmt/ranges.h>
#include <openssl/sha.h>

#include <string>

#include "base/mmap.h"
#include "cpu/amx.h"
#include "cpu/cpu_features.h"
#include "model/shard.h"
#include "source_hashes.h"

namespace fathom {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
// Norms and biases: all of a model's are some megabytes.
constexpr uint64_t kSmallBytes = 1 << 16;

Result<std::string> ModelFact(const Checkpoint& checkpoint) {
  const ModelConfig& c = checkpoint.config();
  if (checkpoint.folder().empty()) {
    return fmt::format("random weights of {} layers of {} channels, {} heads, {} experts, {}",
                       c.num_layers, c.hidden_size, c.num_heads, c.n_routed_experts,
                       c.fp8 ? "FP8" : "BF16");
  }
  std::string text = TRY(ReadFile(checkpoint.folder() + "/config.json", kMaxConfigBytes));
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    text += fmt::format("{} {} {} {}\n", tensor.name, Describe(tensor), tensor.file, tensor.offset);
    if (!tensor.in_schema || tensor.bytes > kSmallBytes || !checkpoint.Has(tensor.name)) continue;
    const TensorView values = checkpoint.Get(tensor.name).values;
    text.append(static_cast<const char*>(values.data()), tensor.bytes);
  }
  return HashOf(text);
}

// Of which a result's bits may depend; other tables compute without.
std::string_view InstructionsFact(std::string_view ops) {
  if (!ops.starts_with("cpu")) return "any";
  if (HasBf16Amx()) return "AMX";
  if (HasBf16Dot()) return "AVX512_BF16";
  if (HasInt8Dot()) return "AVX512_VNNI";
  if (HasAvx512()) return "AVX512";
  return HasAvx2() ? "AVX2" : "portable";
}

}  // namespace

std::string HashOf(std::string_view text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  return fmt::format("{:02x}", fmt::join(std::span(digest, 8), ""));
}

Result<HostFacts> FactsOf(const BackendSettings& s, std::string_view ops,
                          const Checkpoint& checkpoint) {
  const ParallelLayout& layout = s.layout;
  // Hosts of CPUs may differ in their kernels of GPUs.
  const std::string_view sources = ops.starts_with("cuda") ? AllSources() : CpuSources();
  return HostFacts{
      {"build", fmt::format("{} {}", FATHOM_VERSION, sources)},
      {"model", TRY(ModelFact(checkpoint))},
      {"--ops", std::string(ops)},
      {"what --cpu-instructions leaves", std::string(InstructionsFact(ops))},
      {"layout", fmt::format("--tp {} --pp {} --dp {}{}{}", layout.tensor, layout.pipeline,
                             layout.data, layout.experts ? " --enable-expert-parallel" : "",
                             layout.bf16_residual ? " --bf16-residual" : "")},
      {"--quantization", s.quantization},
      {"--kv-cache-dtype", s.kv_cache_dtype}};
}

Result<std::unique_ptr<Hosts>> JoinHosts(const HostsOptions& options,
                                         const BackendSettings& settings, std::string_view ops,
                                         const Checkpoint& checkpoint, HostFacts others) {
  TRY(CheckHosts(options, settings.layout.world()));
  if (options.count == 1) return std::unique_ptr<Hosts>();
  TRY(CheckLayout(checkpoint.config(), settings.layout));
  others.merge(TRY(FactsOf(settings, ops, checkpoint)));
  others["--nnodes"] = std::to_string(options.count);
  return Hosts::Join(options, others, settings.layout.world());
}

void EndWithLostHost(Hosts& hosts) {
  hosts.OnEnd([](const Status& why) {
    fmt::print(stderr, "fathom: {}\n", why.ok() ? "host 0 has left" : why.message());
    std::fflush(stderr);
    std::_Exit(1);
  });
}

}  // namespace fathom
