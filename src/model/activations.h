// Every activation, named and allocated once.
#pragma once

#include <cstdint>
#include <memory>

#include "checkpoint/model_config.h"
#include "ops/ops.h"
#include "tensor/buffer.h"
#include "tensor/device.h"

namespace fathom {

struct Activations {
  TensorView x;                    // F32 [tokens, hidden]: the residual stream
  TensorView normed;               // [tokens, hidden]
  TensorView branch;               // [tokens, hidden]: what attention or an MLP adds
  QuantizedCopy normed_quantized;  // absent where the table has none

  TensorView q_kv_a;  // [tokens, q_lora or heads * (nope + rope), and latent + rope]
  QuantizedCopy q_a_quantized;
  TensorView q;            // [tokens, heads, nope + rope]; plain queries lie in q_kv_a
  TensorView q_latent;     // [tokens, heads, latent]
  TensorView attn_latent;  // [tokens, heads, latent]
  TensorView attn;         // [tokens, heads, vdim]
  QuantizedCopy attn_quantized;
  TensorView lse;  // F32 [tokens, heads]

  TensorView context_latent;  // [context_chunk, latent]
  TensorView context_rope;    // [context_chunk, rope]
  TensorView context_kv;      // [context_chunk, heads * (nope + vdim)]

  // The experts of each token: those chosen, then the shared ones, which are every token's with
  // weight 1 and come after the routed ones. Absent without experts.
  TensorView expert_ids;      // I32 [routed tokens, topk + shared]
  TensorView expert_weights;  // F32 [routed tokens, topk + shared]

  TensorView mtp_in;  // [tokens, 2 * hidden]; absent without MTP layers

  TensorView live_counts;  // I32 [context_chunk + 1]: n at place n, for products over n positions

  std::unique_ptr<DeviceMemory> memory;

  struct Tokens {
    int64_t step = 0;
    int64_t routed = 0;  // PairExchange::TokensRouted
  };
  Activations(const ModelConfig& config, const Ops& ops, const Tokens& tokens, Device& device);

  // What they take of a device's memory.
  static size_t Bytes(const ModelConfig& config, const Ops& ops, const Tokens& tokens);

 private:
  Activations() = default;
  // Returns the bytes that were used.
  size_t LayOut(const ModelConfig& config, const Ops& ops, const Tokens& most, Arena arena);
};

// The first `tokens` of an activation.
inline TensorView First(const TensorView& activation, int64_t tokens) {
  return activation.Slice(0, 0, tokens);
}
// The same of its copy, for the product with `reader`; absent if that does not read one.
inline QuantizedCopy First(const Ops& ops, const QuantizedCopy& copy, int64_t tokens,
                           const PackedWeight* reader) {
  if (copy.absent() || reader == nullptr || !reader->quantize_activations) return {};
  if (ops.reads_copy != nullptr && !ops.reads_copy(*reader, tokens)) return {};
  return {First(copy.codes, tokens), copy.scales, reader->scale_ue8m0};
}

}  // namespace fathom
