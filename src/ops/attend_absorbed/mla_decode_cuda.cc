#include "ops/attend_absorbed/mla_decode_cuda.h"

#include <algorithm>
#include <bit>

#include "cuda/gpu.h"
#include "cuda/tensor_map.h"
#include "ops/attend_absorbed/mla_decode_step.h"
#include "products/hopper/bf16_gemm.h"
#include "products/hopper/bf16_held.h"
#include "products/hopper/gemm_launch.h"
#include "tensor/buffer.h"

namespace fathom {
namespace mla {
namespace {

uint64_t TokenBytesOfRope(const MlaDecodeParams& p) {
  return 2 * (p.q_rope_token_stride > 0 ? p.q_rope_token_stride : p.heads * p.q_rope_stride);
}

// The queries of `tokens` tokens for the narrow kernel: chunks of their latent channels, in each of
// which tokens follow each other, and their rotated channels. Heads that are not there are zeros.
void MakeNarrowQueryMaps(const MlaDecodeParams& p, uint32_t tokens, CUtensorMap* latent,
                         CUtensorMap* rope) {
  const uint64_t heads = p.heads, all = p.tokens, head_bytes = 2 * p.q_rope_stride;
  *latent = MakeTensorMap({.data = p.q_latent,
                           .sizes = {64, heads, all, kLatent / 64},
                           .strides = {kLatent * 2, heads * kLatent * 2, 128},
                           .box = {64, kNarrowHeads, tokens, kLatent / 64}});
  *rope = MakeTensorMap({.data = p.q_rope,
                         .sizes = {kMlaRope, heads, all},
                         .strides = {head_bytes, TokenBytesOfRope(p)},
                         .box = {64, kNarrowHeads, tokens}});
}

void MakeWideQueryMaps(const MlaDecodeParams& p, Maps& maps) {
  const uint64_t tokens = p.tokens, heads = p.heads, pairs = tokens * heads,
                 head_bytes = 2 * p.q_rope_stride;
  const bool by_token = p.heads == kQueryBox;
  CHECK(by_token || TokenBytesOfRope(p) == heads * head_bytes,
        "mla_decode: tokens of q_rope lie apart");
  maps.q_latent = MakeTensorMap({.data = p.q_latent,
                                 .sizes = {64, pairs, kLatent / 64},
                                 .strides = {kLatent * 2, 128},
                                 .box = {64, kQueryBox, 1}});
  maps.q_rope = MakeTensorMap({.data = p.q_rope,
                               .sizes = {kMlaRope, by_token ? heads : pairs, by_token ? tokens : 1},
                               .strides = {head_bytes, TokenBytesOfRope(p)},
                               .box = {64, kQueryBox, 1}});
}

Maps MakeMaps(const MlaDecodeParams& p, bool narrow) {
  const uint64_t pages = p.pages, page_bytes = p.page_bytes;
  Maps maps = {};
  if (narrow) {
    MakeNarrowQueryMaps(p, 1, &maps.q_latent, &maps.q_rope);
    MakeNarrowQueryMaps(p, 2, &maps.pair_latent, &maps.pair_rope);
  } else {
    MakeWideQueryMaps(p, maps);
  }
  maps.rope = MakeTensorMap({.data = p.rope,
                             .sizes = {kMlaRope, kKeys, 1, pages},
                             .strides = {kMlaRope * 2, kMlaRope * 2, page_bytes},
                             .box = {64, kKeys, 1, 1}});
  // Half a page: chunks of 128 bytes a position, one after the other. Asking for 256 bytes at each
  // costs a sixteenth of the rate.
  const CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  if (p.scales == nullptr) {
    maps.latent = MakeTensorMap({.data = p.latent,
                                 .sizes = {64, kKeys, kLatent / 64, pages},
                                 .strides = {kLatent * 2, 128, page_bytes},
                                 .box = {64, kKeys, 4, 1},
                                 .promotion = promotion});
  } else {
    maps.latent = MakeTensorMap({.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                 .data = p.latent,
                                 .sizes = {128, kKeys, kLatent / 128, pages},
                                 .strides = {kLatent, 128, page_bytes},
                                 .box = {128, kKeys, 2, 1},
                                 .promotion = promotion});
    maps.scales = MakeTensorMap({.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                                 .data = p.scales,
                                 .sizes = {kKeys, pages},
                                 .strides = {page_bytes},
                                 .box = {kKeys, 1},
                                 .swizzle = CU_TENSOR_MAP_SWIZZLE_NONE});
  }
  return maps;
}

int32_t MaxParts(int32_t positions, int32_t part_tokens) {
  return (positions + part_tokens - 1) / part_tokens;
}
int32_t MaxSplits(int32_t max_pages, const MlaDecodeSplit& split) {
  if (split.parts > 0) return std::min(max_pages, split.parts);
  const int32_t positions = max_pages * kKeys,
                short_context = std::min(positions, split.short_context);
  const int32_t short_parts = short_context > 0 ? MaxParts(short_context, split.short_tokens) : 0;
  return std::max(MaxParts(positions, split.tokens), short_parts);
}

// Blocks of the columns kernel: GH100 has so many multiprocessors. A constant, so that work space
// is known without a GPU.
constexpr int64_t kMostBlocks = 144;

// Parts' sums of 512 values, of a pass. With MlaDecodeSplitOfStep fewer tokens have more parts:
// what is enough for any step.
int64_t PartVectors(int32_t tokens, int32_t heads, int32_t max_pages, const MlaDecodeSplit& split) {
  if (split.parts > 0) return 2 * kMostBlocks * kPairs;
  return int64_t{tokens} * MaxSplits(max_pages, split) * heads;
}

// The work space of a pass. `exchange` is of all clusters of the columns kernel.
struct WideBuffers {
  WideBuffers(int64_t vectors, Arena arena) {
    partial = arena.Take<__half>(vectors * kLatent);
    state = arena.Take<float2>(vectors * (kLatent / 64));
    exchange = arena.Take<uint8_t>(int64_t{sizeof(__nv_bfloat16)} * kPairs * kKeys *
                                   kExchangeRounds * kMostBlocks);
    used = arena.used();
  }
  __half* partial;
  float2* state;
  uint8_t* exchange;
  size_t used;
};

constexpr float kLog2E = 1.4426950408889634f;

// At most so many parts are of units computed one by one. Sections: k items of n each, of one or
// two tokens, of which a share of 1 / Multiprocessors() or more goes to each first item. Groups:
// those of small steps.
int64_t MaxSingles(int64_t tokens, int64_t max_sections) {
  const int64_t blocks = Multiprocessors(), k = std::min((tokens + 1) / 2, blocks / 2);
  return std::max(std::min(tokens, 2 * k) * max_sections * (blocks - k) / blocks + 1,
                  std::min<int64_t>(tokens, 2) * kFineGroups * blocks);
}

// The work space of the narrow kernel.
struct NarrowBuffers {
  NarrowBuffers(int32_t tokens, int32_t max_pages, int32_t section_tokens, Arena arena) {
    max_singles =
        static_cast<int32_t>(MaxSingles(tokens, MaxParts(max_pages * kKeys, section_tokens)));
    const int64_t vectors = kNarrowHeads * (int64_t{tokens} + max_singles);
    plan = arena.Take<int2>(1);
    first_single = arena.Take<int32_t>(tokens);
    states = arena.Take<float2>(vectors);
    parts = arena.Take<float4>(vectors * kLatent / 4);
    used = arena.used();
  }
  int32_t max_singles;
  int2* plan;
  int32_t* first_single;
  float2* states;
  float4* parts;
  size_t used;
};

Arena ArenaOf(const MlaDecodeParams& p) {
  return Arena(p.workspace.data(), p.workspace.size());
}

void LaunchNarrow(const MlaDecodeParams& p, cudaStream_t stream) {
  // A section has a power of two of groups.
  const int32_t section_tokens = p.split.tokens;
  CHECK(section_tokens >= 128 && section_tokens <= 8192 &&
        std::has_single_bit(0u + section_tokens));
  const NarrowBuffers b(p.tokens, p.max_pages, section_tokens, ArenaOf(p));
  const NarrowStep step = {.slots = p.slots,
                           .positions = p.positions,
                           .page_table = p.page_table,
                           .live = p.live,
                           .plan = b.plan,
                           .first_single = b.first_single,
                           .max_pages = p.max_pages,
                           .heads = p.heads,
                           .tokens = p.tokens,
                           .section_log2 = std::countr_zero(section_tokens / (2u * kKeys)),
                           .max_singles = b.max_singles,
                           .fp8 = p.scales != nullptr};
  const NarrowOutput output = {
      .out = static_cast<__nv_bfloat16*>(p.out), .parts = b.parts, .states = b.states};
  const auto blocks = static_cast<int>(Multiprocessors());
  Gpu::OfThread().Check(
      StartNarrow(MakeMaps(p, true), step, output, p.scale * kLog2E, blocks, stream));
  if (p.values != nullptr) return StartMergeValues(step, output, blocks, *p.values, stream);
  if (p.max_pages > 2) Gpu::OfThread().Check(StartCombineNarrow(step, output, blocks, stream));
}

// Blocks that share an item, so that few items keep more multiprocessors busy; 1: none do. Bits are
// the same. Measured on an H200: docs/design/mla-decode.md.
int ClusterOf(const MlaDecodeParams& p) {
  if (p.split.parts > 0) return 1;
  const int64_t parts =
      int64_t{p.tokens} * ((p.heads + kPairs - 1) / kPairs) * (p.split.tokens <= 2048 ? 2 : 1);
  static_assert(kColumnsTokens >= 16);
  return parts <= 7 ? 8 : parts <= 16 ? 4 : 1;
}

// As many clusters as run at once: 12 of an H200's 132 multiprocessors are left over in their GPCs
// (cudaOccupancyMaxActiveClusters: 15 clusters of 8, 30 of 4).
int64_t MaxClusters(int cluster) {
  return std::clamp<int64_t>((Multiprocessors() - 12) / cluster, 1, kMostBlocks / cluster);
}

// What a block of the columns kernel loads of a tile: all of it, or of codes a chunk of 64 values.
CUtensorMap MakeValuesMap(const MlaDecodeParams& p, int cluster) {
  if (p.scales != nullptr) {
    return MakeTensorMap({.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                          .data = p.latent,
                          .sizes = {64, kKeys, kLatent / 64, static_cast<uint64_t>(p.pages)},
                          .strides = {kLatent, 64, static_cast<uint64_t>(p.page_bytes)},
                          .box = {64, kKeys, 1, 1},
                          .swizzle = CU_TENSOR_MAP_SWIZZLE_NONE,
                          .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
  }
  return MakeTensorMap({.data = p.latent,
                        .sizes = {64, kKeys, kLatent / 64, static_cast<uint64_t>(p.pages)},
                        .strides = {kLatent * 2, 128, static_cast<uint64_t>(p.page_bytes)},
                        .box = {64, kKeys, kLatent / 64 / static_cast<uint32_t>(cluster), 1},
                        .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
}

// The tokens from `first` on, a pass of them.
void LaunchWide(const MlaDecodeParams& p, int32_t first, cudaStream_t stream) {
  const int32_t max_splits = MaxSplits(p.max_pages, p.split);
  const int32_t head_blocks = (p.heads + kPairs - 1) / kPairs;
  MlaDecodeParams pass = p;
  pass.tokens = std::min(p.tokens - first, PassTokens(p.heads));
  const int64_t pairs = int64_t{first} * p.heads;
  pass.q_latent = static_cast<const __nv_bfloat16*>(p.q_latent) + pairs * kLatent;
  pass.q_rope = static_cast<const __nv_bfloat16*>(p.q_rope) + pairs * p.q_rope_stride;
  const Step step = {.slots = p.slots + first,
                     .positions = p.positions + first,
                     .page_table = p.page_table,
                     .live = p.live,
                     .first = first,
                     .tokens = pass.tokens,
                     .max_pages = p.max_pages,
                     .heads = p.heads,
                     .group_tokens = std::max(1, kPairs / p.heads),
                     .head_blocks = head_blocks,
                     .part_tokens = p.split.tokens,
                     .short_context = p.split.short_context,
                     .short_tokens = p.split.short_tokens,
                     .parts = p.split.parts,
                     .part_share = PartShare(p.split.parts),
                     .max_splits = max_splits,
                     .fp8 = p.scales != nullptr};
  const WideBuffers b(PartVectors(pass.tokens, p.heads, p.max_pages, p.split), ArenaOf(p));
  const Output output = {.out = static_cast<__nv_bfloat16*>(p.out) + pairs * kLatent,
                         .partial = b.partial,
                         .state = b.state,
                         .exchange = b.exchange};
  const int64_t items = int64_t{pass.tokens} * max_splits * head_blocks;
  Maps maps = MakeMaps(pass, false);
  const float scale_log2 = p.scale * kLog2E;
  if (const int cluster = ClusterOf(pass); cluster > 1) {
    maps.values = MakeValuesMap(pass, cluster);
    StartColumns(maps, step, output, scale_log2,
                 {.cluster = cluster, .clusters = std::min(MaxClusters(cluster), items)}, stream);
  } else {
    const int blocks = static_cast<int>(std::min<int64_t>(Multiprocessors(), items));
    Gpu::OfThread().Check(StartDecode(maps, step, output, scale_log2, blocks, stream));
  }
  if (max_splits > 1) Gpu::OfThread().Check(StartCombine(step, output, pass.tokens, stream));
}

}  // namespace
}  // namespace mla

MlaDecodeSplit MlaDecodeSplitOf(int32_t heads, int32_t max_pages, bool fp8) {
  if (heads <= mla::kNarrowHeads) return {.tokens = 512};
  // Fewer parts leave less to merge; more, in contexts that are short or with heads that are one
  // item each, keep more blocks busy. Clusters gain less with an FP8 cache, whose codes each block
  // widens for itself.
  const int32_t pages = (heads > mla::kPairs ? 2 : 1) * (fp8 ? 16 : 32);
  return {.tokens = std::max(pages, (max_pages + 63) / 64) * mla::kKeys,
          .short_context = 4096,
          .short_tokens = (fp8 ? 16 : pages / 2) * mla::kKeys};
}

MlaDecodeSplit MlaDecodeSplitOfStep(int32_t tokens, int32_t rows, int32_t heads, int32_t max_pages,
                                    bool fp8) {
  using namespace mla;
  const int32_t row_tokens = (tokens + rows - 1) / std::max(rows, 1);
  // The narrow kernel's items have two tokens at most.
  const bool wide = heads > kNarrowHeads || (heads == kNarrowHeads && row_tokens > 2);
  if (tokens == 0 || rows == 0 || !wide) return MlaDecodeSplitOf(heads, max_pages, fp8);
  const int64_t shared = std::clamp(kPairs / heads, 1, row_tokens),
                items = (std::min(tokens, PassTokens(heads)) + shared - 1) / shared *
                        ((heads + kPairs - 1) / kPairs),
                most = std::max(int64_t{1}, 2 * kMostBlocks / items);
  // Time in contexts of one block: turns of parts, each of which costs some four pages more. The
  // host does not know contexts: as for 64 pages.
  const auto time = [&](int64_t parts) {
    const int64_t turns = (items * parts + Multiprocessors() - 1) / Multiprocessors();
    return static_cast<double>(turns) * (1.0 / static_cast<double>(parts) + 1.0 / 16);
  };
  int64_t best = 1;
  for (int64_t parts = 2; parts <= std::min<int64_t>(most, 64); ++parts) {
    if (time(parts) < time(best)) best = parts;
  }
  return {.tokens = max_pages * kKeys, .parts = static_cast<int32_t>(best)};
}

size_t MlaDecodeWorkspace(int32_t tokens, int32_t heads, int32_t max_pages,
                          const MlaDecodeSplit& split) {
  if (heads <= mla::kNarrowHeads && split.parts == 0) {
    return mla::NarrowBuffers(tokens, max_pages, split.tokens, Arena::Measuring()).used;
  }
  const int32_t pass = std::min(tokens, mla::PassTokens(heads));
  return mla::WideBuffers(mla::PartVectors(pass, heads, max_pages, split), Arena::Measuring()).used;
}

bool MlaDecodeMultiplies(const MlaDecodeParams& p, const Bf16ProductParams& values) {
  return p.heads <= mla::kNarrowHeads && p.split.parts == 0 && p.tokens == 1 &&
         values.tokens == 1 && values.count == p.heads && values.in == kMlaLatent &&
         values.out == mla::kValuesOut && Bf16GemmFits(values) && Bf16HeldFits(values);
}

void LaunchMlaDecode(const MlaDecodeParams& p, cudaStream_t stream) {
  if (p.tokens == 0) return;
  CHECK(p.heads > 0 && (p.split.parts == 0 || p.heads >= mla::kNarrowHeads) && p.scale > 0 &&
        p.split.tokens > 0 && p.split.tokens % mla::kKeys == 0 &&
        p.split.short_tokens % mla::kKeys == 0);
  CHECK(p.values == nullptr || MlaDecodeMultiplies(p, *p.values),
        "mla_decode: {} matrices of values for {} heads, {} tokens", p.values->count, p.heads,
        p.tokens);
  if (p.heads <= mla::kNarrowHeads && p.split.parts == 0) return mla::LaunchNarrow(p, stream);
  for (int32_t first = 0; first < p.tokens; first += mla::PassTokens(p.heads)) {
    mla::LaunchWide(p, first, stream);
  }
}

}  // namespace fathom
