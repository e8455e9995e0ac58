#include "host_facts.h"

#include <fmt/ranges.h>
#include <openssl/sha.h>

#include <string>

#include "base/mmap.h"
#include "cpu_sources.h"

namespace fathom {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
// Norms and biases: all of a model's are some megabytes.
constexpr uint64_t kSmallBytes = 1 << 16;

std::string Hex(const unsigned char* digest) {
  return fmt::format("{:02x}", fmt::join(std::span(digest, 8), ""));
}

Result<std::string> ModelFact(const EngineSettings& s, const Checkpoint& checkpoint) {
  if (s.load_format == "dummy") {
    return fmt::format("random weights of {} {}, {} layers, {}", s.config_preset, s.model,
                       checkpoint.config().num_layers, s.dtype);
  }
  std::string text = TRY(ReadFile(checkpoint.folder() + "/config.json", kMaxConfigBytes));
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    text += fmt::format("{} {} {} {}\n", tensor.name, Describe(tensor), tensor.file, tensor.offset);
    if (!tensor.in_schema || tensor.bytes > kSmallBytes || !checkpoint.Has(tensor.name)) continue;
    const TensorView values = checkpoint.Get(tensor.name).values;
    text.append(static_cast<const char*>(values.data()), tensor.bytes);
  }
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  return Hex(digest);
}

}  // namespace

Result<HostFacts> FactsOf(const EngineSettings& s, std::string_view ops,
                          const Checkpoint& checkpoint) {
  const ParallelLayout& layout = s.layout;
  return HostFacts{
      {"build", fmt::format("{} {}", FATHOM_VERSION, CpuSources())},
      {"model", TRY(ModelFact(s, checkpoint))},
      {"--ops", std::string(ops)},
      {"--nnodes", std::to_string(s.hosts.count)},
      {"layout", fmt::format("--tp {} --pp {} --dp {}{}", layout.tensor, layout.pipeline,
                             layout.data, layout.experts ? " --enable-expert-parallel" : "")},
      {"--quantization", s.quantization},
      {"--kv-cache-dtype", s.kv_cache_dtype},
      {"--max-model-len", std::to_string(s.max_model_len)},
      {"--max-num-seqs", std::to_string(s.max_num_seqs)},
      {"--max-num-batched-tokens", std::to_string(s.max_num_batched_tokens)},
      {"--prefill-chunk", std::to_string(s.prefill_chunk)},
      {"--kv-cache-memory-bytes", std::to_string(s.kv_cache_bytes)},
      {"--speculative-config", s.no_speculation ? "none" : s.speculative_config}};
}

}  // namespace fathom
