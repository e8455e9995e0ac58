// Expanded attention: s = scale (q_nope . k + q_rope . rope), softmax over the piece's positions up
// to the token's, out = weights v, merged into what earlier pieces left by log-sum-exp.
// A block has 128 tokens of one row and head (64 where there would be few blocks), 64 a warpgroup;
// tiles of 128 positions go by. While the values of a tile are added, the next tile is scored and
// its weights are computed.
// Builds on FlashAttention-2 (tokens cut between blocks, the online softmax) and -3 (a warp that
// loads by TMA; the next tile's product is issued before this one's values, so that softmax runs
// beside it).
// Bytes: 512 a position, head and 128 tokens, mostly from the L2; operations: 640 a visible pair.
// fp32 accumulators; weights are rounded to BF16.
// Expected on an H200: 16 heads, 4096 tokens of 4096: 86 GFLOP, 0.15 ms at 570 TFLOPS.
#include <cuda_bf16.h>

#include "cuda/exp2.h"
#include "cuda/fence.h"
#include "cuda/gpu.h"
#include "cuda/launch_early.cuh"
#include "cuda/mbarrier.h"
#include "cuda/tma.h"
#include "cuda/warp.h"
#include "cuda/wgmma_bf16.h"
#include "ops/attend_expanded/flash_attend_step.h"

namespace fathom::flash {
namespace {

constexpr int kTokensOfGroup = 64;  // of a warpgroup
constexpr int kHeadsAtOnce = 16;  // whose blocks run together: they find keys and values in the L2
constexpr int kChunkBytes = 16384;  // 128 tile rows of 64 values, swizzled
constexpr int kValue = 128;

template <int kGroups>
struct Shared {
  alignas(1024) uint8_t query[3][kGroups * kChunkBytes / 2];
  alignas(1024) uint8_t keys[2][3][kChunkBytes];
  alignas(1024) uint8_t values[2][2][kChunkBytes];
  int32_t seen[2 * kGroups];  // greatest of 32 tokens each
  Mbarrier query_full, keys_full[2], keys_empty[2], values_full[2], values_empty[2];
};

// What a block computes: some tokens of a row's piece, and a head.
struct Work {
  ContextPiece piece;
  int32_t token, head;

  // Of the piece's positions, how many a token sees.
  __device__ __forceinline__ int32_t Seen(const Step& step, int32_t t) const {
    if (t >= piece.token_begin + piece.tokens) return 0;
    return max(0, min(piece.count, step.positions[t] - piece.begin + 1));
  }
};

// Some heads at a time; of those, the last tokens first: they see most.
template <int kTokens>
__device__ __forceinline__ Work WorkOf(const Step& step, int32_t block) {
  const auto blocks_of = [](const ContextPiece& piece) {
    return (piece.tokens + kTokens - 1) / kTokens;
  };
  int i = 0;
  for (; block >= blocks_of(step.pieces.of[i]) * step.heads; ++i) {
    block -= blocks_of(step.pieces.of[i]) * step.heads;
  }
  const int32_t blocks = blocks_of(step.pieces.of[i]);
  const int32_t first_head = block / (kHeadsAtOnce * blocks) * kHeadsAtOnce;
  const int32_t heads = min(kHeadsAtOnce, step.heads - first_head);
  const int32_t local = block - first_head * blocks;
  return {.piece = step.pieces.of[i],
          .token = step.pieces.of[i].token_begin + (blocks - 1 - local / heads) * kTokens,
          .head = first_head + local % heads};
}

__device__ __forceinline__ int32_t Tiles(int32_t seen) {
  return (seen + kKeys - 1) / kKeys;
}

// What the tokens of warpgroups [begin, end) see at most.
template <int kGroups>
__device__ __forceinline__ int32_t MostSeen(const Shared<kGroups>& s, int begin, int end) {
  int32_t most = 0;
  for (int i = 2 * begin; i < 2 * end; ++i) most = max(most, s.seen[i]);
  return most;
}

template <int kGroups>
__device__ void Produce(Shared<kGroups>& s, const Maps& maps, const Work& work) {
  const uint64_t once = EvictFirst(), keep = EvictNormal();
  const int32_t tiles = Tiles(MostSeen(s, 0, kGroups));
  if (tiles == 0) return;  // nobody would wait for the query
  s.query_full.ArriveExpect(sizeof(s.query));
  TmaLoad4(s.query, &maps.q, s.query_full, once, {0, work.token, 0, work.head});
  for (int32_t tile = 0; tile < tiles; ++tile) {
    const int stage = tile % 2;
    const int32_t position = work.piece.at + tile * kKeys;
    const uint32_t empty = (tile / 2 & 1) ^ 1;
    s.keys_empty[stage].Wait(empty);
    s.keys_full[stage].ArriveExpect(3 * kChunkBytes);
    TmaLoad4(s.keys[stage], &maps.kv, s.keys_full[stage], keep, {0, position, 0, work.head});
    TmaLoad2(s.keys[stage][2], &maps.rope, s.keys_full[stage], keep, 0, position);
    s.values_empty[stage].Wait(empty);
    s.values_full[stage].ArriveExpect(2 * kChunkBytes);
    TmaLoad4(s.values[stage], &maps.kv, s.values_full[stage], keep, {0, position, 2, work.head});
  }
}

// A warpgroup: 64 tokens. What a thread has of tokens r and r + 8 is indexed 0 and 1.
template <int kGroups>
class Consumer {
 public:
  __device__ Consumer(Shared<kGroups>& s, const Step& step, const Work& work)
      : s_(s),
        step_(step),
        group_(static_cast<int>(threadIdx.x / 128)),
        lane_(static_cast<int>(threadIdx.x % 32)),
        first_(work.piece.begin == 0),
        token_(work.token + static_cast<int>(threadIdx.x / 32) * 16 + lane_ / 4),
        head_(work.head),
        block_seen_(MostSeen(s, 0, kGroups)),
        tiles_(Tiles(MostSeen(s, group_, group_ + 1))) {
#pragma unroll
    for (int i = 0; i < 2; ++i) seen_[i] = work.Seen(step, token_ + 8 * i);
  }

  __device__ void Run() {
#pragma unroll
    for (int i = 0; i < 64; ++i) out_[i] = 0;
    if (tiles_ > 0) {
      s_.query_full.Wait(0);
      Score(0);
      WgmmaCommit();
      WgmmaWait<0>();
      WgmmaHold(scores_);
      Free(s_.keys_empty[0]);
      float scale[2];
      Softmax(0, scale);
      Pack();
      for (int32_t tile = 0; tile + 1 < tiles_; ++tile) AddAndScoreNext(tile);
      ClearValues(tiles_ - 1);
      AddValues(tiles_ - 1);
      WgmmaCommit();
      WgmmaWait<0>();
      WgmmaHold(out_);
      Free(s_.values_empty[(tiles_ - 1) % 2]);
      Write();
    }
    // Tiles that only the other group's tokens see.
    for (int32_t tile = tiles_; tile < Tiles(block_seen_); ++tile) {
      s_.keys_full[tile % 2].Wait(tile / 2 & 1);
      Free(s_.keys_empty[tile % 2]);
      s_.values_full[tile % 2].Wait(tile / 2 & 1);
      Free(s_.values_empty[tile % 2]);
    }
  }

 private:
  // Adds the values of a tile whose weights are packed; meanwhile computes the next tile's weights.
  __device__ __forceinline__ void AddAndScoreNext(int32_t tile) {
    Score(tile + 1);
    WgmmaCommit();
    AddValues(tile);
    WgmmaCommit();
    WgmmaWait<1>();
    WgmmaHold(scores_);
    Free(s_.keys_empty[(tile + 1) % 2]);
    float scale[2];
    Softmax(tile + 1, scale);
    WgmmaWait<0>();
    WgmmaHold(out_);
    Free(s_.values_empty[tile % 2]);
    Rescale(scale);
    Pack();
  }

  // scores_ = Q K^T of a tile, before scaling.
  __device__ void Score(int32_t tile) {
    const int stage = tile % 2;
    s_.keys_full[stage].Wait(tile / 2 & 1);
    const uint64_t query = WgmmaOperand(SharedAddress(s_.query) + group_ * 8192);
    const uint64_t keys = WgmmaOperand(SharedAddress(s_.keys[stage]));
    WgmmaFence();
#pragma unroll
    for (int chunk = 0; chunk < 3; ++chunk) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        WgmmaBf16<128>::Add<Major::kK, Major::kK>(
            scores_, query + (chunk * static_cast<int>(sizeof(s_.query[0])) + k * 32) / 16,
            keys + (chunk * kChunkBytes + k * 32) / 16, chunk > 0 || k > 0);
      }
    }
  }

  // Zeroes the values of positions that no token of the block sees: they may be anything, and 0 x
  // NaN is NaN. Both warpgroups do, as neither waits for the other.
  __device__ void ClearValues(int32_t tile) {
    const int32_t seen = block_seen_ - tile * kKeys;
    if (seen >= kKeys) return;
    const int stage = tile % 2;
    s_.values_full[stage].Wait(tile / 2 & 1);
    for (int i = static_cast<int>(threadIdx.x % 128); i < (kKeys - seen) * 16; i += 128) {
      const int key = seen + i / 16, chunk = i % 16 / 8, part = i % 8;
      *reinterpret_cast<uint4*>(s_.values[stage][chunk] + key * 128 + part * 16) =
          make_uint4(0, 0, 0, 0);
    }
    FenceAsyncShared();
    NamedBarrierSync(1 + group_, 128);
  }

  // out_ += weights x values of a tile.
  __device__ void AddValues(int32_t tile) {
    const int stage = tile % 2;
    s_.values_full[stage].Wait(tile / 2 & 1);
    const uint64_t values = WgmmaOperand(SharedAddress(s_.values[stage]), kChunkBytes);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      WgmmaBf16<128>::Add<Major::kMn>(out_, weights_ + 4 * k, values + k * 2048 / 16, true);
    }
  }

  // Turns scores_ into weights, in place; moves max_ and sum_ on.
  __device__ void Softmax(int32_t tile, float (&scale)[2]) {
    const int32_t begin = tile * kKeys;
    if (begin + kKeys > min(seen_[0], seen_[1])) Mask(begin);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float best = scores_[2 * i];
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        best = fmaxf(best, fmaxf(scores_[4 * j + 2 * i], scores_[4 * j + 2 * i + 1]));
      }
      best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 1));
      best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 2));
      const float max = fmaxf(max_[i], best * step_.scale_log2);
      const float base = max == -INFINITY ? 0 : max;  // nothing seen yet: all weights are 0
      scale[i] = Exp2(max_[i] - base);
      max_[i] = max;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < 16; ++j) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          float& score = scores_[4 * j + 2 * i + k];
          score = Exp2(fmaf(score, step_.scale_log2, -base));
          sum += score;
        }
      }
      sum_[i] = fmaf(sum_[i], scale[i], sum);
    }
  }
  __device__ void Mask(int32_t begin) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int32_t key = begin + 8 * (i / 4) + 2 * (lane_ % 4) + i % 2;
      if (key >= seen_[i % 4 / 2]) scores_[i] = -INFINITY;
    }
  }
  __device__ void Pack() {
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(scores_[2 * j], scores_[2 * j + 1]);
      weights_[j] = *reinterpret_cast<const uint32_t*>(&pair);
    }
  }
  __device__ void Rescale(const float (&scale)[2]) {
    if (!__any_sync(kAllLanes, scale[0] != 1 || scale[1] != 1)) return;
#pragma unroll
    for (int i = 0; i < 64; ++i) out_[i] *= scale[i % 4 / 2];
  }

  __device__ void Free(Mbarrier& empty) {
    __syncwarp();
    if (lane_ == 0) empty.Arrive();
  }

  __device__ void Write() {
    constexpr float kLn2 = 0.6931471805599453f;
    float before[2] = {0, 0};
    if (!first_) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (seen_[i] > 0) before[i] = step_.lse[int64_t{token_ + 8 * i} * step_.heads + head_];
      }
      __syncwarp();  // all lanes of a token have read what one of them overwrites
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = sum_[i];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      if (seen_[i] == 0) continue;  // past the tokens, or nothing of the piece is visible
      const int64_t pair = int64_t{token_ + 8 * i} * step_.heads + head_;
      const float chunk = max_[i] * kLn2 + logf(sum);
      float keep = 0, take = 1, lse = chunk;
      if (!first_) {
        const float both = fmaxf(before[i], chunk);
        lse = both + logf(expf(before[i] - both) + expf(chunk - both));
        keep = expf(before[i] - lse);
        take = expf(chunk - lse);
      }
      const float factor = take / sum;
      auto* out = reinterpret_cast<__nv_bfloat162*>(step_.out + pair * kValue) + lane_ % 4;
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        float low = out_[4 * j + 2 * i] * factor, high = out_[4 * j + 2 * i + 1] * factor;
        if (!first_) {
          const float2 old = __bfloat1622float2(out[4 * j]);
          low = fmaf(old.x, keep, low);
          high = fmaf(old.y, keep, high);
        }
        out[4 * j] = __floats2bfloat162_rn(low, high);
      }
      if (lane_ % 4 == 0) step_.lse[pair] = lse;
    }
  }

  Shared<kGroups>& s_;
  const Step& step_;
  const int group_, lane_;
  const bool first_;     // of the row's pieces
  const int32_t token_;  // of the first of two; the other is 8 further
  const int32_t head_;
  const int32_t block_seen_;  // positions that some token of the block sees
  const int32_t tiles_;       // that some token of this warpgroup sees
  int32_t seen_[2];
  float max_[2] = {-INFINITY, -INFINITY}, sum_[2] = {0, 0};
  float out_[64], scores_[64];
  uint32_t weights_[32];
};

template <int kGroups>
__global__ void __launch_bounds__(128 * (kGroups + 1), 1)
    FlashKernel(const __grid_constant__ Maps maps, const __grid_constant__ Step step) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<Shared<kGroups>*>(memory);
  if (threadIdx.x == 0) {
    s.query_full.Init(1);
    for (int stage = 0; stage < 2; ++stage) {
      s.keys_full[stage].Init(1);
      s.values_full[stage].Init(1);
      s.keys_empty[stage].Init(4 * kGroups);
      s.values_empty[stage].Init(4 * kGroups);
    }
    FenceMbarrierInit();
  }
  WaitForPriorKernels();
  AllowNextKernel();
  constexpr int kTokens = kGroups * kTokensOfGroup;
  const Work work = WorkOf<kTokens>(step, static_cast<int32_t>(blockIdx.x));
  if (threadIdx.x < kTokens) {
    const int32_t seen = work.Seen(step, work.token + static_cast<int32_t>(threadIdx.x));
    const int32_t most = __reduce_max_sync(kAllLanes, seen);
    if (threadIdx.x % 32 == 0) s.seen[threadIdx.x / 32] = most;
  }
  __syncthreads();
  if (threadIdx.x >= 128 * kGroups) {
    if constexpr (kGroups == 2) LowerRegisters<24>();
    if (threadIdx.x == 128 * kGroups) Produce(s, maps, work);
  } else {
    if constexpr (kGroups == 2) RaiseRegisters<240>();
    Consumer<kGroups>(s, step, work).Run();
  }
}

template <int kGroups>
cudaError_t Start(const Maps& maps, const Step& step, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Shared<kGroups>), kTokens = kGroups * kTokensOfGroup;
  static_assert(kBytes <= 227 * 1024);
  Gpu::OfThread().AllowSharedMemory(FlashKernel<kGroups>, kBytes);
  int blocks = 0;
  for (int i = 0; i < step.pieces.count; ++i) {
    blocks += (step.pieces.of[i].tokens + kTokens - 1) / kTokens * step.heads;
  }
  return LaunchEarly(FlashKernel<kGroups>, dim3(blocks), 128 * (kGroups + 1), kBytes, stream, maps,
                     step);
}

}  // namespace

cudaError_t StartFlashAttend(const Maps& maps, const Step& step, int groups, cudaStream_t stream) {
  return groups == 1 ? Start<1>(maps, step, stream) : Start<2>(maps, step, stream);
}

}  // namespace fathom::flash
