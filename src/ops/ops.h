// Everything the hardware must do, each operation once: its arguments, shapes and rules.
//
// Shapes are capacities, outermost dimension first; how many tokens or rows are live is a device
// tensor (`live`, I32 [1]), so that a step can be captured once and replayed: what lies beyond is
// never written, and nothing depends on it. Ops of the expanded form alone, which are enqueued row
// by row and never captured, take the host's counts instead. "act" is the table's activation type.
// Unless stated otherwise sums are accumulated in fp32, in an order that depends on the shapes of
// one token alone (never on the number of tokens, nor on threads), and outputs do not alias inputs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"
#include "ops/collectives.h"
#include "ops/context_piece.h"
#include "ops/drafts.h"
#include "ops/kv_format.h"
#include "ops/norm.h"
#include "ops/op.h"
#include "ops/slot_state.h"
#include "products/packed_weight.h"
#include "tensor/tensor_view.h"

namespace fathom {

// out[t] = table[ids[t]]. The table may be a rank's part of the vocabulary, which begins with the
// id `first`: out[t] is zero for ids that are not in it.
struct EmbedArgs {
  TensorView ids;    // I32 [tokens], in [0, vocab)
  TensorView table;  // BF16, F16 or F32 [vocab's part, hidden]
  TensorView live;   // I32 [1]: tokens
  TensorView out;    // act or F32 [tokens, hidden]
  int64_t first = 0;
  int64_t vocab = 0;  // of all ranks; 0: the table is all there is
};

// out = x W^T. If the weight says quantize_activations, each run of 128 channels of x is quantised
// to E4M3 online (quant/e4m3.h, QuantizeRun), products are summed in fp32 within a scale tile and
// scaled by activation scale x weight scale (DeepSeek-V3 technical report, section 3.3). Runs end
// where the weight's scale tiles end: the first is shorter when the weight was cut inside a tile.
struct LinearArgs {
  TensorView x;                          // act [tokens, in]; tokens may be strided
  QuantizedCopy x_quantized;             // of x, or absent
  const PackedWeight* weight = nullptr;  // one matrix [out, in]
  TensorView live;                       // I32 [1]: tokens
  TensorView out;                        // act or F32 [tokens, out]
  bool batch_invariant = true;           // else a token's bits may follow from how many there are
};

// out[t, h] = x[t, h] W[h]^T: a product per head (absorbed W_UK, W_UV), activations as they are.
struct HeadLinearArgs {
  TensorView x;                          // act [tokens, heads, in]; tokens and heads may be strided
  const PackedWeight* weight = nullptr;  // heads matrices [out, in]
  TensorView live;                       // I32 [1]: tokens
  TensorView out;           // act [tokens, heads, out]; tokens and heads may be strided
  QuantizedCopy quantized;  // out: of `out` [tokens, heads * out], then contiguous; or absent
};

// out = silu(gate) * up, where gate_up = [gate, up]. Models call mlp; this is its middle, of which
// the reference and CUDA's plain path make it, and every table has it so that it is tested alone.
struct SiluMulArgs {
  TensorView gate_up;  // act [tokens, 2 * inter]
  TensorView live;     // I32 [1]: tokens
  TensorView out;      // act [tokens, inter]
};

// out = down(silu(gate x) * up x): the composition of linear, silu_mul and linear, in which the
// product of gate and up need not be rounded to act.
struct MlpArgs {
  TensorView x;                           // act [tokens, in]; tokens may be strided
  QuantizedCopy x_quantized;              // of x, or absent
  const PackedWeight* gate_up = nullptr;  // one matrix [2 * inter, in]
  const PackedWeight* down = nullptr;     // one matrix [out, inter]
  TensorView live;                        // I32 [1]: tokens
  TensorView out;                         // act [tokens, out]
};

// Which tokens belong to which request: device tensors that PrepareInputs makes.
struct TokenMap {
  TensorView slots;       // I32 [tokens]: each token's slot
  TensorView positions;   // I32 [tokens]: absolute
  TensorView page_table;  // I32 [slots, max_pages]: page of positions [64 i, 64 i + 64)
  TensorView live;        // I32 [1]: tokens
};

// What MLA does between its projections and its scores: norms each token's latent as rms_norm does,
// rotates its key and its queries, and writes latent and key to its page, which rounds them.
// Interleaved pairs (x[2i], x[2i+1]) of every head turn by positions[t] * frequency i: (a cos - b
// sin, a sin + b cos). Su et al. 2021, RoPE; DeepSeek checkpoints interleave.
struct RotateAndCacheArgs {
  TensorView kv_a;         // act [tokens, latent + rope]; tokens may be strided; left as work space
  TensorView latent_norm;  // F32 [latent]
  float eps = 1e-6f;
  TensorView q_rope;   // act [tokens, heads, rope], in and out; tokens and heads may be strided
  TensorView cos_sin;  // F32 [max_positions, 2, rope / 2]: YaRN's factor is folded in
  TokenMap tokens;     // early (op.h): right behind a linear
  KvPages pages;       // out
};

// MLA, absorbed form (DeepSeek-V2, section 2.1): every head attends to the same latents.
// s_j = scale * (q_latent . latent_j + q_rope . rope_j) over j = 0..position; out = softmax(s)
// latent. A token's bits do not depend on how many tokens its row has.
struct AttendAbsorbedArgs {
  TensorView q_latent;  // act [tokens, heads, latent]
  TensorView q_rope;    // act [tokens, heads, rope]; tokens and heads may be strided
  TokenMap tokens;      // early (op.h): behind a linear, a rotate_and_cache and a head_linear
  KvPages pages;
  float scale = 1;
  TensorView out;         // act [tokens, heads, latent]
  int64_t step_rows = 0;  // above 0: of so many rows at most; then bits may depend on the step
  HeadLinearArgs values;  // W_UV: of `out`, which is then left with anything; or absent
};

// Gathers the latents and keys of the pieces' positions, one piece after another.
struct GatherContextArgs {
  KvPages pages;
  TensorView page_table;  // I32 [slots, max_pages]
  std::span<const ContextPiece> pieces;
  TensorView latent;  // act [context, latent], out
  TensorView rope;    // act [context, rope], out
};

// MLA, expanded form, over pieces of some rows' contexts: keys and values projected up per head.
// s_j = scale * (q_nope . k_j + q_rope . rope_j) over the positions j <= the token's of its row's
// piece. Merges a piece into what the row's pieces before it left, by log-sum-exp; one that begins
// at position 0 starts afresh. A token to which no position of its piece is visible is untouched,
// and so are those of no piece.
struct AttendExpandedArgs {
  TensorView q;          // act [tokens, heads, nope + rope]; tokens may be strided
  TensorView positions;  // I32 [tokens]
  TensorView kv;         // act [context, heads, nope + vdim]: kv_b_proj of the latents
  TensorView rope;       // act [context, rope]
  std::span<const ContextPiece> pieces;
  float scale = 1;
  TensorView out;  // act [tokens, heads, vdim], in and out: normalised so far
  TensorView lse;  // F32 [tokens, heads], in and out: log of the sum of exp(s) so far
};

enum class RouterScoring : uint8_t { kSoftmax, kSigmoid };
enum class RouterSelection : uint8_t {
  kGreedy,             // top-k of all (V2-Lite)
  kGroupMax,           // groups by their best score (V2)
  kGroupTopTwoBiased,  // groups by the sum of their best two biased scores (V3)
};

// Scores x against the gate, chooses experts, weighs them: exact products, fp32 sums of them.
// Ties go to the lower index. Selection uses score + bias; experts outside the chosen groups are
// masked with -inf; weights are the unbiased scores, divided by (their sum + 1e-20) if
// norm_topk_prob, times `scaling`. An expert whose score is NaN ranks below every number.
// DeepSeek-V2 section 2.2, V3 2.1.2.
struct RouteArgs {
  TensorView x;      // act [tokens, hidden]
  RmsNormArgs norm;  // which makes x first: its `out` is x; or absent
  TensorView gate;   // F32, or BF16 as x is [experts, hidden]
  TensorView bias;   // F32 [experts], or absent
  RouterScoring scoring = RouterScoring::kSigmoid;
  RouterSelection selection = RouterSelection::kGroupTopTwoBiased;
  int32_t n_group = 1, topk_group = 1;
  bool norm_topk_prob = true;
  float scaling = 1;
  TensorView live;     // I32 [1]: tokens
  TensorView ids;      // I32 [tokens, topk], out: best first; tokens may be strided
  TensorView weights;  // F32 [tokens, topk], out; tokens may be strided
};

// out[t] = sum over j in order of weights[t, j] * down[e](silu(gate[e] x) * up[e] x), e = ids[t,
// j]. FP8 as in Linear, for both products. silu * up, and what is summed, may be rounded to act.
struct MoeExpertsArgs {
  TensorView x;                           // act [tokens, hidden]
  TensorView ids;                         // I32 [tokens, topk], in [0, experts)
  int64_t shared = 0;                     // of topk: each token's last ids, the last experts'
  TensorView weights;                     // F32 [tokens, topk]
  const PackedWeight* gate_up = nullptr;  // experts matrices [2 * inter, hidden]
  const PackedWeight* down = nullptr;     // experts matrices [hidden, inter]
  TensorView live;                        // I32 [1]: tokens
  TensorView out;                         // act [tokens, hidden]
  // What is made of `out`, its x, or absent. `out` may then hold anything; norm.out may be x.
  RmsNormArgs norm;
};

// out[i] = x[index[i]].
struct GatherTokensArgs {
  TensorView x;      // act [tokens, width]
  TensorView index;  // I32 [picked], in [0, tokens)
  TensorView live;   // I32 [1]: picked
  TensorView out;    // act [picked, width]
};

// Makes a step's inputs from the plan and the slots. Which of a row's tokens are live: of a row of
// known tokens all; of a decode last_token and drafts, as far as its capacity goes and no sampled
// token lies beyond the slot's final length, or none if the slot has ended. Live tokens follow each
// other in the order of rows. A row that samples has a logit vector for its last token, a decode
// for every live one; they are counted out in passes of a fixed size.
struct PrepareInputsArgs {
  // The plan, uploaded.
  TensorView row_slot;      // I32 [rows]
  TensorView row_capacity;  // I32 [rows + 1]: where each row's tokens begin if all are live
  TensorView plan_tokens;   // I32 [tokens], each row's from row_capacity on; of decodes unread
  TensorView plan_begin;    // I32 [rows]: absolute position, or -1: a decode, at the slot's length
  TensorView plan_samples;  // I32 [rows]: 1 if the row samples, else 0
  TensorView live_rows;     // I32 [1]
  int64_t expanded_tokens = 0;  // of rows of known tokens, which come first
  int64_t pass_vectors = 1;     // logit vectors of a pass
  SlotState slots;
  TensorView ids;            // I32 [tokens], out
  TensorView positions;      // I32 [tokens], out
  TensorView token_slot;     // I32 [tokens], out
  TensorView live_tokens;    // I32 [1], out
  TensorView absorbed_live;  // I32 [1], out: without the expanded ones
  TensorView row_begin;      // I32 [rows + 1], out: first live token of each row, and their number
  TensorView row_count;      // I32 [rows], out: live tokens of each row
  TensorView logit_begin;  // I32 [rows + 1], out: first logit vector of each row, and their number
  TensorView logit_index;  // I32 [logit vectors], out: each one's token
  TensorView logit_ordinal;  // I32 [logit vectors], out: how many of its row are before it
  TensorView pass_live;      // I32 [passes], out: live logit vectors of each pass
};

// Turns raw logits into those to sample from, in the order that request/params.h gives, up to the
// mask: bias; repetition (divides positive, multiplies negative logits of tokens in
// prompt or output; Keskar et al. 2019); frequency x count; presence; ban (-inf); mask
// (-inf where a masked slot's bit is 0). Of a row's vectors each takes the drafts before it as
// generated, as if the row's tokens came one by one.
struct AdjustLogitsArgs {
  TensorView logits;      // F32 [logit vectors, vocab], in and out
  TensorView index;       // I32 [logit vectors], in [0, tokens): each one's token
  TensorView ordinal;     // I32 [logit vectors]: how many of the slot's drafts are before it
  TensorView token_slot;  // I32 [tokens]
  SlotState slots;
  TensorView live;  // I32 [1]: logit vectors
};

// Log-probabilities of raw logits: of the given token, of the `top` likeliest, ties to the lower
// id, and of the ids that slots name. A vector with NaN has NaN (and any top ids of the
// vocabulary).
struct LogProbsArgs {
  TensorView logits;        // F32 [logit vectors, vocab]
  TensorView tokens;        // I32 [logit vectors], in [0, vocab), or -1: its logprob is NaN
  TensorView live;          // I32 [1]: logit vectors
  TensorView logprob;       // F32 [logit vectors], out
  TensorView top_ids;       // I32 [logit vectors, top], out; top may be 0
  TensorView top_logprobs;  // F32 [logit vectors, top], out; absent: ids alone, `tokens` too
  SlotIds named;
};

// Draws a token per logit vector from adjusted logits. Temperature 0: the greatest, ties to the
// lower id. Else: softmax(logits / temperature) cut to the top_k likeliest (ties at the border:
// lower ids stay), then to the smallest likeliest set with mass >= top_p of what is left, then to
// probabilities >= min_p times the greatest, and drawn by inverse CDF over ids in order of falling
// logit (ties: lower id first) with the Philox number of (seed, position of the new token, which is
// one more than the logit vector's token's, sample/uniform.h): the same on any number of ranks. ok
// is 0, and the token -1, for a vector with NaN or +inf, or with nothing finite.
struct SampleArgs {
  TensorView logits;      // F32 [logit vectors, vocab]
  TensorView index;       // I32 [logit vectors], in [0, tokens): each one's token
  TensorView token_slot;  // I32 [tokens]
  TensorView positions;   // I32 [tokens]
  SlotState slots;
  TensorView live;    // I32 [1]: logit vectors
  TensorView tokens;  // I32 [logit vectors], out
  TensorView ok;      // I32 [logit vectors], out
};

// Advances slots past a step, as far as each row's tokens stand: length, and with each token that
// was sampled from one that stands: last_token, generated, counts. A stop token (once min_tokens
// are generated) or a failed sample ends the slot: what stands is cut behind it.
struct CommitArgs {
  TensorView row_slot;     // I32 [rows]
  TensorView row_begin;    // I32 [rows + 1]
  TensorView positions;    // I32 [tokens]
  TensorView logit_begin;  // I32 [rows + 1]
  TensorView sampled;      // I32 [logit vectors]; -1 where sampling failed
  TensorView row_count;    // I32 [rows], in and out: how many of the row's tokens stand, from its
                           // begin; 0 of a row without live tokens, else at least as many as make
                           // one sampled token where the row samples
  TensorView live_rows;    // I32 [1]
  SlotState slots;         // out
};

// A backend: a table of functions.
struct Ops {
  std::string_view name;  // "reference", "cpu", "cuda-portable", "cuda-hopper"
  DType activation = DType::kF32;
  DType kv_cache = DType::kBF16;  // what KvFormat has by default
  bool quantized_copies = false;  // whether it makes and reads QuantizedCopy
  // Whether a product of so many tokens reads one: else nobody need make it. Null: it does.
  bool (*reads_copy)(const PackedWeight& weight, int64_t tokens) = nullptr;
  // Rows' contexts are expanded this many positions at a time, a row's at absolute multiples of it.
  int64_t context_chunk = 512;
  int64_t exchange_tokens = 1024;  // of all ranks together, that dispatch takes at a time
  OpLimits limits;

  // Packs weights; kUnimplemented names what this table cannot run. Reads the sources once.
  Result<std::unique_ptr<PackedWeight>> (*pack)(Stream&, const PackArgs&) = nullptr;

  Op<EmbedArgs> embed;
  Op<ConvertArgs> convert;
  Op<RmsNormArgs> rms_norm;
  Op<AllReduceNormArgs> all_reduce_norm;
  Op<AllGatherArgs> all_gather;
  Op<DispatchArgs> dispatch;
  Op<CombineArgs> combine;
  Op<LinearArgs> linear;
  Op<HeadLinearArgs> head_linear;
  Op<SiluMulArgs> silu_mul;
  Op<MlpArgs> mlp;
  Op<RotateAndCacheArgs> rotate_and_cache;
  Op<AttendAbsorbedArgs> attend_absorbed;
  Op<GatherContextArgs> gather_context;
  Op<AttendExpandedArgs> attend_expanded;
  Op<RouteArgs> route;
  Op<MoeExpertsArgs> moe_experts;
  Op<GatherTokensArgs> gather_tokens;
  Op<PrepareInputsArgs> prepare_inputs;
  Op<AdjustLogitsArgs> adjust_logits;
  Op<LogProbsArgs> log_probs;
  Op<SampleArgs> sample;
  Op<VerifyDraftsArgs> verify_drafts;
  Op<CommitArgs> commit;
  Op<ProposeNgramArgs> propose_ngram;
  Op<PrepareDraftsArgs> prepare_drafts;
  Op<AddDraftArgs> add_draft;
};

class CudaDevice;  // cuda/device.h

// How FP8 weights meet activations.
enum class Fp8Activations : uint8_t {
  kExact,      // as they are: the mathematics of the checkpoint
  kQuantized,  // to E4M3 per token and 128 channels, as FP8 tensor cores need it
};

// Plain fp32 C++, single-threaded: the oracle.
const Ops& ReferenceOps(Fp8Activations activations);
// Multi-threaded; streams are CpuStream (cpu/cpu_stream.h). Weights stay in the type that the
// checkpoint stores them in.
const Ops& CpuOps(Fp8Activations activations);
// As CpuOps(kExact), but activations are rounded to BF16 where they meet BF16 or FP8 weights, which
// halves the work of many tokens, and the KV cache is BF16. Without HasBf16Dot()
// (cpu/cpu_features.h) activations are not rounded.
const Ops& CpuBF16Ops();
// As CpuOps(kExact), with all matrices but those of the absorbed form quantised to kInt8 or kInt4
// when they are packed, and activations quantised to 8-bit integers per token and 128 channels;
// activations of the absorbed form and the KV cache are rounded to BF16.
const Ops& CpuIntegerOps(WeightFormat format);
// GPUs, a table for each architecture; streams are CudaStream (cuda/stream.h). Activations and the
// KV cache are BF16, weights in the type that the checkpoint stores them in. Linked into builds
// with CUDA only.
//
// Any GPU from compute capability 8.0 on: also the safety net and second oracle of the others.
const Ops& CudaPortableOps(Fp8Activations activations);
// GPUs of compute capability 9.0 (H100, H200) alone.
const Ops& CudaHopperOps(Fp8Activations activations);
// The table of the device's architecture; the portable one, if it has none.
const Ops& CudaOps(const CudaDevice& device, Fp8Activations activations);

// Every op's contract on shapes and types; a violation is a bug and stops the process.
void Check(const EmbedArgs&);
void Check(const RmsNormArgs&);
void Check(const AllReduceNormArgs&);
void Check(const LinearArgs&);
void Check(const HeadLinearArgs&);
void Check(const SiluMulArgs&);
void Check(const MlpArgs&);
void Check(const RotateAndCacheArgs&);
void Check(const AttendAbsorbedArgs&);
void Check(const GatherContextArgs&);
void Check(const AttendExpandedArgs&);
void Check(const RouteArgs&);
void Check(const MoeExpertsArgs&);
void Check(const GatherTokensArgs&);
void Check(const PrepareInputsArgs&);
void Check(const AdjustLogitsArgs&);
void Check(const LogProbsArgs&);
void Check(const SampleArgs&);
void Check(const CommitArgs&);

}  // namespace fathom
