// Drafts from the model's own draft layer (multi-token prediction: DeepSeek-V3, section 2.2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "model/batch.h"
#include "model/kv_pool.h"
#include "model/model.h"
#include "sampling/sampler.h"
#include "tensor/buffer.h"
#include "tensor/device.h"

namespace fathom {

// Of which of a step's tokens the draft layer gets latents. What it lacks makes its later guesses
// worse, and no answer different.
enum class DraftTokens : uint8_t {
  kNone,
  // Those of prompts, which pages share, and what is computed again. Nothing is guessed from them,
  // so that the layer stops at their latents.
  kKnown,
  kAll,
};

// A step of which all is drawn and committed.
struct DrawnStep {
  const Batch& batch;
  const RowTensors& rows;
  SlotState slots;
  // Which all ranks of all groups know alike:
  int64_t step_rows = 0;  // the most of any data-parallel group
  int32_t drafts = 0;     // to propose; 0: none, or nobody samples
  DraftTokens tokens = DraftTokens::kAll;
};

// THREAD: one at a time.
class MtpProposer {
 public:
  // They must outlive this. REQUIRES: the model has one MTP layer.
  MtpProposer(Model& model, const KvPool& pool, Sampler& sampler, Device& device, int64_t slots);

  static size_t Bytes(const ModelConfig& config, const ModelOptions& options, const Ops& ops);

  // Has the draft layer compute its latents of all tokens, if step.tokens says so, each from its
  // final-normed hidden state [tokens, hidden] and the token behind it, and sets the drafts of the
  // slots: the likeliest token, then what the layer makes of its own output. Stages before the last
  // one are told. Ops alone. REQUIRES: of all tokens, or no drafts.
  void Propose(const DrawnStep& step, const TensorView& hidden);
  // Behind Propose(): has it compute those of the known tokens, as those of all would be. Of the
  // last stage; ops alone, but of as many tokens as the batch's rows have: no record holds them.
  void CacheKnown(const Batch& batch, const TensorView& hidden);

 private:
  struct Tensors {
    TensorView next_ids;                                       // I32 [tokens]
    TensorView draft_slot, draft_index, likeliest, positions;  // I32 [rows]
    TensorView live_drafts, pass_live;                         // I32 [1], [passes]
    TensorView hidden;                                         // [rows, hidden]
    TensorView all_slots;                                      // I32 [1]: how many there are

    size_t LayOut(const ModelConfig& config, const ModelOptions& options, const Ops& ops,
                  Arena arena);
  };

  void ProposeOfLastStage(const DrawnStep& step, const TensorView& hidden);
  void Prepare(const DrawnStep& step);
  Batch Shifted(Batch batch) const;  // with the tokens behind its own, as prepared
  // One more draft for each slot, from hidden states [rows, hidden].
  void AddDraft(const DrawnStep& step, const TensorView& hidden, int32_t drafts);

  Model& model_;
  const KvPool& pool_;
  Sampler& sampler_;
  std::unique_ptr<DeviceMemory> memory_;
  Tensors t_;
};

}  // namespace fathom
