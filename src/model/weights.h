// A model's weights on a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/read_window.h"
#include "model/shard.h"
#include "ops/ops.h"
#include "tensor/device.h"

namespace fathom {

// A matrix, or a stack of them, packed by the backend. Adapters will find their place here.
struct Linear {
  std::unique_ptr<PackedWeight> weight;
};

// A norm's weight, a router's or an embedding on the device, with its owner; vectors are fp32.
struct PlainTensor {
  std::unique_ptr<DeviceMemory> memory;
  TensorView view;
};

struct AttentionWeights {
  // q_a_proj [q_lora, hidden], or with plain queries q_proj [heads * (nope + rope), hidden], and
  // after it kv_a_proj_with_mqa [latent + rope, hidden].
  Linear q_kv_a;
  PlainTensor q_a_norm;   // [q_lora]; absent with plain queries, as q_b
  Linear q_b;             // [heads * (nope + rope), q_lora]
  PlainTensor kv_a_norm;  // [latent]
  Linear kv_b;            // [heads * (nope + vdim), latent]: the expanded form
  Linear w_uk;            // heads x [latent, nope]: W_UK absorbed into queries
  Linear w_uv;            // heads x [vdim, latent]: W_UV absorbed into outputs
  Linear o;               // [hidden, heads * vdim]
};

struct MlpWeights {
  Linear gate_up;  // [2 * inter, hidden]
  Linear down;     // [hidden, inter]
};

// The routed experts that the rank has, and after them the shared ones.
struct MoeWeights {
  PlainTensor gate;  // F32 [routed experts, hidden]; BF16 as stored, if activations are
  PlainTensor bias;  // F32 [routed experts], or absent
  Linear gate_up;    // experts x [2 * inter, hidden]
  Linear down;       // experts x [hidden, inter]
  // I32 [routed tokens, topk + shared]: SyntheticRouting's, in the router's stead; or absent.
  PlainTensor synthetic_ids;
};

struct LayerWeights {
  PlainTensor attention_norm;  // input_layernorm
  AttentionWeights attention;
  PlainTensor mlp_norm;  // post_attention_layernorm
  std::optional<MlpWeights> mlp;
  std::optional<MoeWeights> moe;  // one of the two
};

// A multi-token-prediction layer (DeepSeek-V3 technical report, section 2.2). It shares the main
// model's embedding and head, as the published checkpoints do.
struct MtpWeights {
  PlainTensor embedding_norm;  // enorm
  PlainTensor hidden_norm;     // hnorm
  Linear eh_proj;              // [hidden, 2 * hidden]
  LayerWeights layer;
  PlainTensor head_norm;  // shared_head.norm
};

struct ModelWeights {
  PlainTensor embedding;  // BF16, F16 or F32 [vocab, hidden]; of a rank its part of them, as
                          // lm_head; absent where nothing reads it (HasEmbedding)
  std::vector<LayerWeights> layers;  // of its stage
  int first_layer = 0;               // their first one
  PlainTensor final_norm;            // this and what follows: of the last stage alone
  Linear lm_head;                    // [vocab, hidden]
  std::vector<MtpWeights> mtp;
  size_t bytes = 0;  // on the device
};

TensorSizes SizesIn(const Checkpoint& checkpoint);

// Bytes of the checkpoint read so far, of how many.
using LoadProgress = std::function<void(uint64_t done, uint64_t total)>;

// Reads, packs and drops tensor by tensor; the extra peak is the routed experts of one layer. Of a
// rank only its part is read, a layer at a time within the reader's window.
Result<ModelWeights> LoadWeights(const Checkpoint& checkpoint, const Ops& ops, Device& device,
                                 const Shard& shard, const LoadProgress& progress,
                                 const ReadWindow::Reader& reader = {});

}  // namespace fathom
