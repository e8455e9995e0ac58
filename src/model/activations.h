// Every activation, named and allocated once.
#pragma once

#include <cstdint>
#include <memory>

#include "checkpoint/model_config.h"
#include "tensor/buffer.h"
#include "tensor/device.h"

namespace fathom {

// The context of an expanded row is expanded this many positions at a time, at absolute multiples.
inline constexpr int64_t kContextChunk = 512;

struct Activations {
  TensorView x;       // F32 [tokens, hidden]: the residual stream
  TensorView normed;  // [tokens, hidden]
  TensorView branch;  // [tokens, hidden]: what attention or an MLP adds

  TensorView q_a;          // [tokens, q_lora]; absent with plain queries
  TensorView q;            // [tokens, heads, nope + rope]
  TensorView kv_a;         // [tokens, latent + rope]
  TensorView q_latent;     // [tokens, heads, latent]
  TensorView attn_latent;  // [tokens, heads, latent]
  TensorView attn;         // [tokens, heads, vdim]
  TensorView lse;          // F32 [tokens, heads]

  TensorView context_latent;  // [context, latent]
  TensorView context_rope;    // [context, rope]
  TensorView context_kv;      // [context, heads * (nope + vdim)]

  // The experts of each token: those chosen, then the shared ones, which are every token's with
  // weight 1 and come after the routed ones. Absent without experts.
  TensorView expert_ids;      // I32 [tokens, topk + shared]
  TensorView expert_weights;  // F32 [tokens, topk + shared]

  TensorView mtp_in;  // [tokens, 2 * hidden]; absent without MTP layers

  TensorView numbers;  // I32 [context + 1]: i at i, so that numbers[n] can serve as a live count

  std::unique_ptr<DeviceMemory> memory;

  Activations(const ModelConfig& config, DType dtype, int64_t tokens, Device& device);

  // What they take of a device's memory.
  static size_t Bytes(const ModelConfig& config, DType dtype, int64_t tokens);

 private:
  Activations() = default;
  // Returns the bytes that were used.
  size_t LayOut(const ModelConfig& config, DType dtype, int64_t tokens, Arena arena);
};

// The first `tokens` of an activation.
inline TensorView First(const TensorView& activation, int64_t tokens) {
  return activation.Slice(0, 0, tokens);
}

}  // namespace fathom
