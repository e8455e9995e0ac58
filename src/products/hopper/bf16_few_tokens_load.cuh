// BF16 products of few tokens: a block's shared memory, its tiles, and the warps that fill it.
#pragma once

#include <cuda_bf16.h>

#include "cuda/l2_policy.h"
#include "cuda/mbarrier.h"
#include "cuda/mma.cuh"
#include "cuda/tma.h"
#include "products/cuda/few_pairs.cuh"
#include "products/hopper/bf16_few_tokens.h"

namespace fathom::bf16_few_tokens {

constexpr int kChunkBytes = 2 * kBf16Chunk;  // one tile row of the 128-byte swizzle
constexpr int kStageChunks = 2;
constexpr int kMostStages = 32;
constexpr int kTokens = kBf16FewTokens;  // of x
constexpr int kXBytes = kTokens * kChunkBytes;
constexpr int kMostPairs = FewPairs::kMost;
constexpr int64_t kMostShared = 32;  // matrices: a lane each

struct Args {
  Bf16ProductParams p;
  int32_t channels;  // of the output
  int32_t chunks;    // of K
  int32_t across;    // tiles of a matrix
  int32_t stages;
};

template <int kWarps_, bool kSilu_>
struct Tile {
  static constexpr int kWarps = kWarps_;  // that multiply
  static constexpr bool kSilu = kSilu_;
  static constexpr int kThreads = 32 * (kWarps + 2);
  static constexpr int kWeightChannels = 16 * kWarps;
  static constexpr int kOut = kSilu ? kWeightChannels / 2 : kWeightChannels;
  static constexpr int kWeightBytes = kWeightChannels * kChunkBytes;  // of a chunk
  static constexpr int kStageBytes = kStageChunks * (kWeightBytes + kXBytes);
};

// The pairs of each expert, at most as many as there are tokens. Experts that all tokens share come
// first, also where no token is live, because their weights were asked for before that was known;
// then those that few tokens chose.
struct Experts {
  int32_t count;
  int32_t matrix[kMostPairs], counts[kMostPairs];
  int32_t pairs[kMostPairs][kTokens];
};

__device__ __forceinline__ int32_t LiveTokens(const Bf16ProductParams& p) {
  return min(__ldcg(p.live), static_cast<int32_t>(p.tokens));
}

// One warp.
__device__ inline void FindExperts(Experts& experts, const Bf16ProductParams& p) {
  const int lane = threadIdx.x % 32;
  const auto topk = static_cast<int32_t>(p.topk);
  const int32_t pairs = LiveTokens(p) * topk, shared = static_cast<int32_t>(p.shared);
  int32_t count = shared;
  if (lane < shared) {
    experts.matrix[lane] = static_cast<int32_t>(p.count) - shared + lane;
    experts.counts[lane] = 0;
  }
  __syncwarp();
  for (int32_t base = 0; base < pairs; base += 32) {
    const int32_t pair = base + lane;
    const int32_t id = pair < pairs ? __ldcg(p.ids + pair) : -1;
    // Experts that are there already, then those that are new among these 32.
    int32_t place = -1;
    for (int32_t i = 0; i < count; ++i) {
      if (experts.matrix[i] == id) place = i;
    }
    const unsigned equal = __match_any_sync(kAllLanes, id);
    const bool first = id >= 0 && place < 0 && (equal & ((1u << lane) - 1)) == 0;
    const unsigned firsts = __ballot_sync(kAllLanes, first);
    if (first) {
      place = count + __popc(firsts & ((1u << lane) - 1));
      experts.matrix[place] = id;
      experts.counts[place] = 0;
    }
    place = __shfl_sync(kAllLanes, place, __ffs(equal) - 1);
    __syncwarp();
    const int32_t before = id >= 0 ? experts.counts[place] : 0;
    __syncwarp();
    if (id >= 0) {
      const int32_t at = before + __popc(equal & ((1u << lane) - 1));
      if (at < kTokens) experts.pairs[place][at] = pair;
      if ((equal >> lane) == 1) experts.counts[place] = min(at + 1, kTokens);
    }
    count += __popc(firsts);
    __syncwarp();
  }
  if (lane == 0) experts.count = count;
}

struct Shared {
  Mbarrier full[kMostStages], empty[kMostStages];
  Experts experts;
};

// What a tile's stages hold.
struct Place {
  int32_t group, matrix, channel, tokens;  // tokens: or pairs
};
template <class T>
__device__ Place PlaceOf(const Shared& shared, const Args& args, int32_t item) {
  Place place;
  place.group = item / args.across;
  place.channel = (item - place.group * args.across) * T::kOut;
  const bool pairs = args.p.ids != nullptr;
  place.matrix = pairs ? shared.experts.matrix[place.group] : place.group;
  place.tokens = pairs ? shared.experts.counts[place.group] : static_cast<int32_t>(args.p.tokens);
  return place;
}

// Weights of tiles, stage by stage: one lane.
template <class T>
class WeightLoader {
 public:
  __device__ WeightLoader(Shared& shared, uint8_t* memory, const Args& args, const CUtensorMap& map)
      : shared_(shared), memory_(memory), args_(args), map_(map) {}

  // Of a block whose first tile is of a matrix that all tokens share, as many stages as there are
  // places: which weights these are is known before the ids are.
  __device__ void LoadEarly() {
    const auto item = static_cast<int32_t>(blockIdx.x);
    const auto matrices = static_cast<int32_t>(args_.p.shared);
    if (item >= matrices * args_.across) return;
    const int32_t group = item / args_.across, channel = (item - group * args_.across) * T::kOut;
    const int32_t first = Channel(static_cast<int32_t>(args_.p.count) - matrices + group, channel);
    early_ = min(args_.stages, (args_.chunks + kStageChunks - 1) / kStageChunks);
    for (int32_t stage = 0; stage < early_; ++stage) LoadStage(stage, stage * kStageChunks, first);
  }

  // All others. Does not wait for the kernels before.
  __device__ void Load(int32_t items) {
    Ring ring{.buffers = args_.stages};
    for (int32_t item = blockIdx.x; item < items; item += gridDim.x) {
      const Place place = PlaceOf<T>(shared_, args_, item);
      const int32_t first = Channel(place.matrix, place.channel);
      for (int32_t chunk = 0; chunk < args_.chunks; chunk += kStageChunks, ring.Advance()) {
        if (early_ > 0) {
          --early_;
          continue;
        }
        shared_.empty[ring.index].Wait(ring.parity ^ 1);
        LoadStage(ring.index, chunk, first);
      }
    }
  }

 private:
  __device__ int32_t Channel(int32_t matrix, int32_t channel) const {
    return matrix * args_.channels * (T::kSilu ? 2 : 1) + channel;
  }
  __device__ void LoadStage(int32_t stage, int32_t chunk, int32_t channel) {
    Mbarrier& full = shared_.full[stage];
    uint8_t* to = memory_ + stage * kStageChunks * T::kWeightBytes;
    const int32_t count = min(kStageChunks, args_.chunks - chunk);
    full.ArriveExpect(count * T::kWeightBytes);
    for (int32_t i = 0; i < count; ++i, to += T::kWeightBytes) {
      TmaLoad2(to, &map_, full, kTmaEvictFirst, (chunk + i) * kBf16Chunk, channel);
      if (T::kSilu) {
        TmaLoad2(to + T::kWeightBytes / 2, &map_, full, kTmaEvictFirst, (chunk + i) * kBf16Chunk,
                 channel + args_.channels);
      }
    }
  }

  Shared& shared_;
  uint8_t* const memory_;
  const Args& args_;
  const CUtensorMap& map_;
  int32_t early_ = 0;  // stages that are asked for already
};

// x of every stage: one warp.
template <class T>
__device__ void LoadTokens(Shared& shared, uint8_t* memory, const Args& args, int32_t items) {
  constexpr int kVectors = kStageChunks * kBf16Chunk / 8;  // of 16 bytes, of a token
  constexpr int kTokensAtATime = 32 / kVectors;
  const Bf16ProductParams& p = args.p;
  const auto* const x = reinterpret_cast<const __nv_bfloat16*>(p.x);
  const int lane = threadIdx.x % 32, vector = lane % kVectors;
  const uint32_t first = SharedAddress(memory) + vector / 8 * kXBytes;
  Ring ring{.buffers = args.stages};
  for (int32_t item = blockIdx.x; item < items; item += gridDim.x) {
    const Place place = PlaceOf<T>(shared, args, item);
    const __nv_bfloat16* from[kTokens / kTokensAtATime];
#pragma unroll
    for (int i = 0; i < kTokens / kTokensAtATime; ++i) {
      const int32_t token = i * kTokensAtATime + lane / kVectors;
      int64_t at = 0;
      if (p.ids == nullptr) {
        at = token * p.x_stride + place.matrix * p.x_head_stride;
      } else if (token < place.tokens) {
        const int32_t pair = shared.experts.pairs[place.group][token];
        at = (p.x_of_pairs ? pair : pair / p.topk) * p.x_stride;
      }
      from[i] = x + at;
    }
    for (int32_t chunk = 0; chunk < args.chunks; chunk += kStageChunks, ring.Advance()) {
      const int32_t channel = chunk * kBf16Chunk + vector * 8;
      const uint32_t to = first + ring.index * kStageChunks * kXBytes;
      shared.empty[ring.index].Wait(ring.parity ^ 1);
#pragma unroll
      for (int i = 0; i < kTokens / kTokensAtATime; ++i) {
        const int32_t token = i * kTokensAtATime + lane / kVectors;
        if (token >= place.tokens) break;
        const bool valid = channel < p.in;
        kernels::CopyAsync(to + token * kChunkBytes + (vector % 8 ^ token) * 16,
                           valid ? from[i] + channel : x, valid);
      }
      shared.full[ring.index].ArriveAfterCopies();
    }
  }
  kernels::WaitForCopies<0>();
}

}  // namespace fathom::bf16_few_tokens
