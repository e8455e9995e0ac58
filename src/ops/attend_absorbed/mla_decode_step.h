// What the MLA decode kernels are given, and how the host starts them.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/attend_absorbed/mla_decode_cuda.h"

namespace fathom::mla {

inline constexpr int kLatent = 512;
inline constexpr int kPairs = 64;     // (token, head) pairs: the M of wgmma
inline constexpr int kKeys = 64;      // positions of a tile: a page
inline constexpr int kQueryBox = 16;  // pairs that one TMA load of queries brings
inline constexpr int kNarrowHeads = kMlaNarrowHeads;
// Tokens of a pass of the kernel for many heads, at most. Of more than 64 heads 256 keep all
// multiprocessors busy, and are as many as a step of decoding has by default.
inline constexpr int kPassTokens = 512;
inline int32_t PassTokens(int32_t heads) {
  return heads > kPairs ? kPassTokens / 2 : kPassTokens;
}
inline constexpr int kColumnsTokens = 32;  // at most, of the columns kernel
inline constexpr int kExchangeRounds = 4;  // of tiles, whose weights are on their way
inline constexpr int kFineGroups = 1;      // of 128 positions a block: so few are dealt singly
inline constexpr int kThreads = 384;       // two warpgroups of consumers, one with the producer;
inline constexpr int kFp8Threads = 512;    // of the wide kernel, and warps that widen

// 2^32 / parts, rounded up; of 1 part 0.
inline uint32_t PartShare(int32_t parts) {
  return parts > 1 ? ~0u / static_cast<uint32_t>(parts) + 1 : 0;
}

// What the kernel knows of the step.
struct Step {
  const int32_t* slots;
  const int32_t* positions;
  const int32_t* page_table;
  const int32_t* live;
  int32_t first;   // of all the tokens that `live` counts, the one that this pass begins with
  int32_t tokens;  // capacity of this pass; other arrays than `live` begin with it
  int32_t max_pages;
  int32_t heads;
  int32_t group_tokens;   // consecutive tokens of a row that share an item: max(1, 64 / heads)
  int32_t head_blocks;    // ceil(heads / 64)
  int32_t part_tokens;    // multiples of kKeys: of a part of a context,
  int32_t short_context;  // and if it has up to so many positions
  int32_t short_tokens;   // of these
  int32_t parts;          // MlaDecodeSplit, at most 64;
  uint32_t part_share;    // PartShare(parts)
  int32_t max_splits;
  bool fp8;  // the cache; the host's choice of a kernel

  // Live tokens of this pass; none: 0 or below.
  __device__ int32_t Live() const { return *live - first < tokens ? *live - first : tokens; }
  // Positions of a part of the context that a token at `position` sees.
  __device__ int32_t PartTokens(int32_t position) const {
    if (parts > 0) {
      const uint32_t all = position / kKeys + parts;
      const uint32_t tiles =
          parts == 1 ? all : static_cast<uint32_t>(uint64_t{all} * part_share >> 32);
      return static_cast<int32_t>(tiles > 1 ? tiles : 2) * kKeys;
    }
    return position < short_context ? short_tokens : part_tokens;
  }
};

struct Maps {
  CUtensorMap q_latent, q_rope, latent, rope;
  CUtensorMap pair_latent, pair_rope;  // of the narrow kernel: queries of two tokens
  CUtensorMap scales;                  // of FP8
  CUtensorMap values;                  // of the columns kernel: those of one block
};

struct Output {
  __nv_bfloat16* out;  // [tokens, heads, latent]
  // Of parts, not normalised. Each 64 of a pair's values are scaled by a power of two, which their
  // state takes up. Columns 32 m + 8 j + 2 q + {0, 1}, j = 0..3, lie together: as threads hold
  // them.
  __half* partial;  // [tokens, max_splits, heads, latent]
  float2* state;    // [tokens, max_splits, heads, latent / 64]: maximum in log2, sum of weights
  // Of the columns kernel: weights on their way, [clusters, kExchangeRounds, blocks of a cluster,
  // 64 pairs, 64 positions] in BF16.
  uint8_t* exchange;
};

// The same for the kernel for at most 16 heads.
struct NarrowStep {
  const int32_t* slots;
  const int32_t* positions;
  const int32_t* page_table;
  const int32_t* live;
  // Written by the kernel for CombineMany.
  int2* plan;             // [1]: log2 of a unit's groups, and units of a token's first item
  int32_t* first_single;  // [tokens]: of those that have more units, the part of the next one
  int32_t max_pages;
  int32_t heads;
  int32_t tokens;        // capacity
  int32_t section_log2;  // of the groups of 2 kKeys positions in a section
  int32_t max_singles;   // parts of single units that there is room for
  bool fp8;              // as in Step
};

struct NarrowOutput {
  __nv_bfloat16* out;  // [tokens, heads, latent]
  // Of tokens' first items, then of their single units. Values lie as threads hold them.
  float4* parts;   // [tokens + singles, 16 * latent]
  float2* states;  // [tokens + singles, 16]: maximum in log2, sum of weights
};

// Of the columns kernel: `cluster` blocks, 4 or 8, share an item.
struct ColumnsGrid {
  int cluster;
  int64_t clusters;
};

// Each enqueues one kernel. StartColumns and StartDecode do the same, to the bit. StartCombine
// merges parts once they are there.
cudaError_t StartDecode(const Maps& maps, const Step& step, const Output& output, float scale_log2,
                        int blocks, cudaStream_t stream);
void StartColumns(const Maps& maps, const Step& step, const Output& output, float scale_log2,
                  const ColumnsGrid& grid, cudaStream_t stream);
cudaError_t StartCombine(const Step& step, const Output& output, int32_t tokens,
                         cudaStream_t stream);
cudaError_t StartNarrow(const Maps& maps, const NarrowStep& step, const NarrowOutput& output,
                        float scale_log2, int blocks, cudaStream_t stream);
// blocks: those of StartNarrow.
cudaError_t StartCombineNarrow(const NarrowStep& step, const NarrowOutput& output, int blocks,
                               cudaStream_t stream);
// Instead, of one token: what `values` makes of its results, kValuesOut outputs a head.
inline constexpr int kValuesOut = 128;
void StartMergeValues(const NarrowStep& step, const NarrowOutput& output, int blocks,
                      const Bf16ProductParams& values, cudaStream_t stream);

}  // namespace fathom::mla
