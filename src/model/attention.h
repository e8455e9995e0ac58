// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1; DeepSeek-V3,
// arXiv:2412.19437, section 2.1.1).
#pragma once

#include <span>

#include "checkpoint/model_config.h"
#include "model/activations.h"
#include "model/batch.h"
#include "model/weights.h"
#include "ops/op_runner.h"

namespace fathom {

struct Rotary {
  TensorView cos_sin;  // F32 [max_positions, 2, rope / 2]
  float softmax_scale = 1;
};

// The longest part of a chunk, in tokens, for which attending in latent space costs fewer
// operations than projecting the context up: l (n + v) / ((2 l + r) - (n + r + v)) with l, r, n, v
// the latent, rope, nope and value dimensions; 170 for 512/64/128/128.
int64_t AbsorbedLimit(const ModelConfig& config);

// What the attention of all layers works with.
//
// DeepseekV2Attention.forward and DeepseekV3Attention.forward of transformers, which expand every
// context and know no absorbed form; rotations as in DeepSeek's checkpoints (rope_interleave):
// apply_rotary_emb, and apply_rotary_pos_emb_interleave, which leaves the same numbers in another
// order, in queries and keys alike.
class Attention {
 public:
  // All must outlive it.
  Attention(OpRunner& run, const ModelConfig& config, const Rotary& rotary, Activations& a,
            bool batch_invariant)
      : run_(run), config_(config), rotary_(rotary), a_(a), batch_invariant_(batch_invariant) {}

  // Of one layer: writes the tokens' latents to `pages` and attends; a.normed -> a.branch.
  void Run(const AttentionWeights& w, const Batch& batch, const KvPages& pages);
  // Writes the latents, as Run() does, and attends to nothing.
  void Cache(const AttentionWeights& w, const Batch& batch, const KvPages& pages);

 private:
  void ProjectDown(const AttentionWeights& w, const Batch& batch);
  void ProjectQueries(const AttentionWeights& w, const Batch& batch);
  void RotateAndCache(const AttentionWeights& w, const Batch& batch, const KvPages& pages);
  void AttendAbsorbed(const AttentionWeights& w, const Batch& batch, const KvPages& pages,
                      const QuantizedCopy& quantized);
  void AttendExpanded(const AttentionWeights& w, const Batch& batch, const KvPages& pages);
  void AttendPieces(const AttentionWeights& w, const Batch& batch, const KvPages& pages,
                    std::span<const ContextPiece> pieces);
  TensorView KvA(const Batch& batch) const;  // [tokens, latent + rope]

  OpRunner& run_;
  const ModelConfig& config_;
  const Rotary& rotary_;
  Activations& a_;
  const bool batch_invariant_;
};

}  // namespace fathom
