#include "sampling/sampler.h"

#include <algorithm>
#include <numeric>

namespace fathom {

size_t Sampler::Tensors::LayOut(const SamplerCapacity& capacity, const Ops& ops, Arena arena) {
  const int64_t vectors = capacity.pass_vectors,
                top = std::min<int64_t>(kMaxTopLogprobs, capacity.vocab);
  for (TensorView* view : {&identity, &index, &given_tokens}) {
    *view = arena.Allocate(DType::kI32, {vectors});
  }
  live = arena.Allocate(DType::kI32, {1});
  hidden = arena.Allocate(ops.activation, {vectors, capacity.hidden});
  logits = arena.Allocate(DType::kF32, {vectors, capacity.vocab});
  kept = arena.Allocate(DType::kF32, {vectors, capacity.vocab});
  logprob = arena.Allocate(DType::kF32, {vectors});
  top_ids = arena.Allocate(DType::kI32, {vectors, top});
  top_logprobs = arena.Allocate(DType::kF32, {vectors, top});
  named_logprobs = arena.Allocate(DType::kF32, {vectors, kMaxLogprobTokenIds});
  for (TensorView* view : {&tokens, &ok}) {
    *view = arena.Allocate(DType::kI32, {capacity.logit_vectors});
  }
  return arena.used();
}

size_t Sampler::Bytes(const SamplerCapacity& capacity, const Ops& ops) {
  return Tensors().LayOut(capacity, ops, Arena::Measuring());
}

Sampler::Sampler(const SamplerCapacity& capacity, const Ops& ops, Device& device)
    : capacity_(capacity), run_(ops, device), memory_(device.Allocate(Bytes(capacity, ops))) {
  CHECK(capacity.logit_vectors >= capacity.pass_vectors, "{} logit vectors in passes of {}",
        capacity.logit_vectors, capacity.pass_vectors);
  t_.LayOut(capacity, ops, Arena(memory_->data(), memory_->size()));

  std::vector<int32_t> identity(static_cast<size_t>(capacity.pass_vectors));
  std::iota(identity.begin(), identity.end(), 0);
  UploadInts(t_.identity, std::as_bytes(std::span(identity)));

  // One pass at full capacity, without running anything.
  const Slots one_slot({.slots = 1, .vocab = capacity.vocab, .max_pages = 1}, device);
  const LogitPass pass{.index = t_.index, .ordinal = t_.index, .live = t_.live};
  Gather(pass, t_.hidden);
  Sample(pass, 0, {.slots = t_.index, .positions = t_.index}, one_slot.state());
  run_(ops.log_probs, {.logits = t_.logits,
                       .tokens = t_.given_tokens,
                       .live = t_.live,
                       .logprob = t_.logprob,
                       .top_ids = t_.top_ids,
                       .top_logprobs = t_.top_logprobs});
  run_.Allocate();
}

// Returns the front of `to`, which is uploaded.
TensorView Sampler::UploadInts(const TensorView& to, std::span<const std::byte> from) {
  const TensorView front = to.Slice(0, 0, static_cast<int64_t>(from.size() / sizeof(int32_t)));
  if (!from.empty()) run_.device().Upload(front, from);
  return front;
}

LogitPass Sampler::Stage(std::span<const int32_t> index) {
  const auto vectors = static_cast<int32_t>(index.size());
  CHECK(vectors <= capacity_.pass_vectors, "{} logit vectors in a pass, capacity {}", vectors,
        capacity_.pass_vectors);
  UploadInts(t_.live, std::as_bytes(std::span(&vectors, 1)));
  return {.index = UploadInts(t_.index, std::as_bytes(index)), .live = t_.live};
}

TensorView Sampler::Gather(const LogitPass& pass, const TensorView& hidden) {
  const TensorView out = t_.hidden.Slice(0, 0, pass.vectors());
  run_(run_.ops().gather_tokens, {.x = hidden, .index = pass.index, .live = pass.live, .out = out});
  return out;
}

void Sampler::Sample(const LogitPass& pass, int64_t first, const TokenMap& map,
                     const SlotState& state) {
  const Ops& ops = run_.ops();
  const int64_t vectors = pass.vectors();
  // Log-probabilities are those of the model. Whether anybody asks is said on the device, as a
  // record is of steps of both kinds.
  run_(ops.gather_tokens, {.x = logits(pass),
                           .index = t_.identity.Slice(0, 0, vectors),
                           .live = pass.kept.absent() ? pass.live : pass.kept,
                           .out = t_.kept.Slice(0, 0, vectors)});
  run_(ops.adjust_logits, {.logits = logits(pass),
                           .index = pass.index,
                           .ordinal = pass.ordinal,
                           .token_slot = map.slots,
                           .slots = state,
                           .live = pass.live});
  run_(ops.sample, {.logits = logits(pass),
                    .index = pass.index,
                    .token_slot = map.slots,
                    .positions = map.positions,
                    .slots = state,
                    .live = pass.live,
                    .tokens = t_.tokens.Slice(0, first, first + vectors),
                    .ok = t_.ok.Slice(0, first, first + vectors)});
}

void Sampler::ShareDrawn(const LogitPass& pass, int64_t first, Communicator* ranks) {
  run_(run_.ops().all_gather,
       Broadcast(t_.tokens.Slice(0, first, first + pass.vectors()), pass.live, ranks));
}

void Sampler::Commit(const RowTensors& rows, const TensorView& positions, const SlotState& state) {
  run_(run_.ops().commit, {.row_slot = rows.slot,
                           .row_begin = rows.begin,
                           .positions = positions,
                           .logit_begin = rows.logit_begin,
                           .sampled = t_.tokens,
                           .row_count = rows.count,
                           .live_rows = rows.live,
                           .slots = state});
}

void Sampler::VerifyDrafts(const RowTensors& rows, const SlotState& state,
                           double synthetic_acceptance) {
  run_(run_.ops().verify_drafts, {.row_slot = rows.slot,
                                  .logit_begin = rows.logit_begin,
                                  .sampled = t_.tokens,
                                  .row_count = rows.count,
                                  .live_rows = rows.live,
                                  .slots = state,
                                  .synthetic_acceptance = synthetic_acceptance});
}

void Sampler::ProposeNgram(const NgramLookup& lookup, const RowTensors& rows,
                           const TensorView& positions, const SlotState& state) {
  run_(run_.ops().propose_ngram, {.row_slot = rows.slot,
                                  .row_begin = rows.begin,
                                  .positions = positions,
                                  .logit_begin = rows.logit_begin,
                                  .sampled = t_.tokens,
                                  .row_count = rows.count,
                                  .live_rows = rows.live,
                                  .lookup = lookup,
                                  .slots = state});
}

TokenLogprobs Sampler::PassLogprobs::vector(size_t vector, int32_t top) const {
  const size_t width = top_ids.size() / vectors();
  TokenLogprobs result = {.logprob = logprobs[vector]};
  for (size_t i = 0; i < std::min(width, static_cast<size_t>(top)); ++i) {
    result.top.emplace_back(TokenId{top_ids[vector * width + i]}, top_logprobs[vector * width + i]);
  }
  return result;
}

TokenLogprobs Sampler::PassLogprobs::vector(size_t vector, std::span<const TokenId> ids) const {
  const size_t width = named.size() / vectors();
  CHECK(ids.size() <= width, "{} ids were named, and {} looked up", ids.size(), width);
  TokenLogprobs result = this->vector(vector, /*top=*/0);
  for (size_t i = 0; i < ids.size(); ++i) {
    result.top.emplace_back(ids[i], named[vector * width + i]);
  }
  return result;
}

void Sampler::LogProbs(const LogitPass& pass, std::span<const TokenId> tokens, int32_t top,
                       PassLogprobs& to) {
  CHECK(static_cast<int64_t>(tokens.size()) == pass.vectors());
  LogProbs(logits(pass), pass.live, UploadInts(t_.given_tokens, std::as_bytes(tokens)), top, {},
           to);
}

void Sampler::LogProbsOfDrawn(const LogitPass& pass, int64_t first, LogprobWidths widths,
                              const TensorView& token_slot, const SlotState& state,
                              PassLogprobs& to) {
  SlotIds named;
  if (widths.named > 0) {
    named = {.index = pass.index,
             .token_slot = token_slot,
             .of_slots = state.logprob_ids,
             .logprobs =
                 TensorView(t_.named_logprobs.data(), DType::kF32, {pass.vectors(), widths.named})};
  }
  LogProbs(t_.kept.Slice(0, 0, pass.vectors()), pass.live,
           t_.tokens.Slice(0, first, first + pass.vectors()), widths.top, named, to);
}

void Sampler::LogProbs(const TensorView& logits, const TensorView& live, const TensorView& tokens,
                       int32_t top, const SlotIds& named, PassLogprobs& to) {
  const int64_t vectors = logits.dim(0), count = std::min<int64_t>(top, capacity_.vocab);
  const TensorView logprob = t_.logprob.Slice(0, 0, vectors);
  const TensorView top_ids(t_.top_ids.data(), DType::kI32, {vectors, count});
  const TensorView top_logprobs(t_.top_logprobs.data(), DType::kF32, {vectors, count});
  run_(run_.ops().log_probs, {.logits = logits,
                              .tokens = tokens,
                              .live = live,
                              .logprob = logprob,
                              .top_ids = top_ids,
                              .top_logprobs = top_logprobs,
                              .named = named});
  to.logprobs.resize(static_cast<size_t>(vectors));
  to.top_ids.resize(static_cast<size_t>(vectors * count));
  to.top_logprobs.resize(to.top_ids.size());
  Device& device = run_.device();
  device.Download(std::as_writable_bytes(std::span(to.logprobs)), logprob);
  device.Download(std::as_writable_bytes(std::span(to.top_ids)), top_ids);
  device.Download(std::as_writable_bytes(std::span(to.top_logprobs)), top_logprobs);
  if (named.logprobs.absent()) return;
  to.named.resize(static_cast<size_t>(named.logprobs.elements()));
  device.Download(std::as_writable_bytes(std::span(to.named)), named.logprobs);
}

void Sampler::Likeliest(const TensorView& live, const TensorView& tokens) {
  const int64_t vectors = tokens.dim(0);
  run_(run_.ops().log_probs, {.logits = draft_logits(vectors),
                              .live = live,
                              .top_ids = TensorView(tokens.data(), DType::kI32, {vectors, 1})});
}

void Sampler::Download(const RowTensors& rows, int64_t num_rows, int64_t logit_vectors,
                       Drawn& drawn) {
  const auto download = [&](const TensorView& from, int64_t size, std::vector<int32_t>& to) {
    to.resize(static_cast<size_t>(size));
    run_.device().Download(std::as_writable_bytes(std::span(to)), from.Slice(0, 0, size));
  };
  download(t_.tokens, logit_vectors, drawn.ids);
  download(t_.ok, logit_vectors, drawn.ok);
  download(rows.logit_begin, num_rows + 1, drawn.logit_begin);
  download(rows.count, num_rows, drawn.count);
}

}  // namespace fathom
