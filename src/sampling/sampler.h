// From hidden states of chosen tokens to logits, tokens and log-probabilities.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "ops/op_runner.h"
#include "ops/ops.h"
#include "ops/step_rows.h"
#include "request/params.h"
#include "sampling/slots.h"
#include "tensor/buffer.h"
#include "tensor/device.h"

namespace fathom {

struct SamplerCapacity {
  int64_t logit_vectors = 0;  // of a step
  int64_t pass_vectors = 0;   // logit vectors that exist at a time
  int64_t vocab = 0;
  int64_t hidden = 0;
};

// A step's logit vectors are taken in passes, each of which is Gather(), the model's Logits() into
// logits(), then Sample() and LogProbs() as wanted; after all of them Commit() and Download().
// THREAD: one at a time.
class Sampler {
 public:
  Sampler(const SamplerCapacity& capacity, const Ops& ops, Device& device);

  static size_t Bytes(const SamplerCapacity& capacity, const Ops& ops);
  int64_t pass_vectors() const { return capacity_.pass_vectors; }

  // Uploads a pass over tokens that the host chose: for logits alone, not to sample.
  LogitPass Stage(std::span<const int32_t> index);
  // The hidden states of the pass, [logit vectors, hidden].
  TensorView Gather(const LogitPass& pass, const TensorView& hidden);
  TensorView logits(const LogitPass& pass) const {  // F32 [logit vectors, vocab]: the model's
    return t_.logits.Slice(0, 0, pass.vectors());
  }

  // Draws a token for every logit vector of a step's pass, which begin at `first` among the
  // step's. Adjusts the logits, and keeps a copy of those that pass.kept says.
  void Sample(const LogitPass& pass, int64_t first, const TokenMap& map, const SlotState& state);

  // What the group's first rank sampled in a pass becomes what all of them did.
  void ShareDrawn(const LogitPass& pass, int64_t first, Communicator* ranks);

  // Which of the step's drafts stand, by what was sampled, or by chance (VerifyDraftsArgs). Before
  // Commit().
  void VerifyDrafts(const RowTensors& rows, const SlotState& state, double synthetic_acceptance);
  // Advances the slots of a step past it, by what was sampled.
  void Commit(const RowTensors& rows, const TensorView& positions, const SlotState& state);

  // F32 [logit vectors, vocab]: for logits of drafts, in place of those that were drawn from. What
  // is kept stays: log-probabilities may yet be asked for.
  TensorView draft_logits(int64_t vectors) const { return t_.logits.Slice(0, 0, vectors); }
  // Of as many of these as `tokens`, I32 [logit vectors], has room for.
  void Likeliest(const TensorView& live, const TensorView& tokens);
  // I32 [logit vectors of a step]: what Sample() drew; -1 where it failed.
  const TensorView& drawn() const { return t_.tokens; }

  // Drafts of the next step's decodes. After Commit().
  void ProposeNgram(const NgramLookup& lookup, const RowTensors& rows, const TensorView& positions,
                    const SlotState& state);

  // Log-probabilities of a pass on their way to the host.
  struct PassLogprobs {
    std::vector<float> logprobs, top_logprobs, named;
    std::vector<int32_t> top_ids;
    size_t vectors() const { return logprobs.size(); }
    TokenLogprobs vector(size_t vector,
                         int32_t top) const;  // with the `top` likeliest, of those there are
    // With the `ids` of its slot, instead.
    TokenLogprobs vector(size_t vector, std::span<const TokenId> ids) const;
  };
  // How many of each logit vector: of the likeliest, and of SlotState::logprob_ids.
  struct LogprobWidths {
    int32_t top = 0, named = 0;
  };
  // Those of `tokens`, and of the `top` likeliest, by logits(); `to` is written once a later mark
  // has been waited for. Beyond the pass's live vectors it is garbage.
  void LogProbs(const LogitPass& pass, std::span<const TokenId> tokens, int32_t top,
                PassLogprobs& to);
  // Those of the tokens that Sample() drew from a step's pass, and of what `widths` says, by what
  // it kept.
  void LogProbsOfDrawn(const LogitPass& pass, int64_t first, LogprobWidths widths,
                       const TensorView& token_slot, const SlotState& state, PassLogprobs& to);

  // What was drawn, and what of it stands, on their way to the host.
  struct Drawn {
    std::vector<int32_t> ids, ok;                              // of each logit vector
    std::vector<int32_t> logit_begin, count;                   // of rows: RowTensors
    std::optional<TokenId> token(size_t logit_vector) const {  // nothing where sampling failed
      return ok[logit_vector] != 0 ? std::optional(TokenId{ids[logit_vector]}) : std::nullopt;
    }
  };
  // Enqueues the download of the first `num_rows` rows, with `logit_vectors` logit vectors at most:
  // `drawn` is written once a later mark has been waited for.
  void Download(const RowTensors& rows, int64_t num_rows, int64_t logit_vectors, Drawn& drawn);

 private:
  struct Tensors {
    // Of a pass:
    TensorView identity, index, live, given_tokens, top_ids;
    TensorView hidden, logits, kept, logprob, top_logprobs, named_logprobs;
    // Of a step:
    TensorView tokens, ok;

    size_t LayOut(const SamplerCapacity& capacity, const Ops& ops, Arena arena);
  };

  void LogProbs(const TensorView& logits, const TensorView& live, const TensorView& tokens,
                int32_t top, const SlotIds& named, PassLogprobs& to);
  TensorView UploadInts(const TensorView& to, std::span<const std::byte> from);

  SamplerCapacity capacity_;
  OpRunner run_;
  std::unique_ptr<DeviceMemory> memory_;
  Tensors t_;
};

}  // namespace fathom
