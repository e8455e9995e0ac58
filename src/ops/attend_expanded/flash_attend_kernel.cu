// Expanded attention: s = scale (q_nope . k + q_rope . rope), softmax over the piece's positions up
// to the token's, out = weights v, merged into what earlier pieces left by log-sum-exp.
// An item has 128 tokens of one row and head (64 where there would be few items), 64 a warpgroup;
// tiles of 128 positions go by. A block per multiprocessor computes one item after the other.
// The tensor cores are one warpgroup's at a time, its turn: while the values of a tile are added
// and the next tile is scored, the other computes weights. An item's last values and the next
// item's first scores are a turn, too, so that little waits for an item's end. Builds on
// FlashAttention-2 (tokens cut between blocks, the online softmax), -3 (loads by TMA of their own,
// warpgroups that take turns, the next tile's product before this one's values, items handed out
// longest first) and -4 (sums are rescaled only where they would grow too much). Bytes: 512 a
// position, head and 128 tokens, mostly from the L2; operations: 640 a visible pair. fp32
// accumulators; weights are rounded to BF16. On an H200 16 heads and 4096 tokens of 4096, 86 GFLOP,
// take 0.128 to 0.136 ms: 630 to 670 TFLOPS.
#include <cuda_bf16.h>

#include <algorithm>

#include "cuda/exp2.h"
#include "cuda/fence.h"
#include "cuda/gpu.h"
#include "cuda/launch_early.cuh"
#include "cuda/wgmma_bf16.h"
#include "ops/attend_expanded/flash_attend_load.cuh"
#include "ops/attend_expanded/flash_attend_write.cuh"

namespace fathom::flash {
namespace {

// A warpgroup: 64 tokens. What a thread has of tokens r and r + 8 is indexed 0 and 1.
template <int kGroups>
class Consumer {
 public:
  __device__ Consumer(Shared<kGroups>& s, const Step& step)
      : s_(s),
        step_(step),
        group_(__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / 128), 0)),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        tile_row_(static_cast<int>(threadIdx.x % 128 / kWarp) * 16 + lane_ / 4) {}

  __device__ void Run() {
    if (!AwaitItem(0)) return;
    if (group_ == 1) PassTurn();  // group 0 begins
    AwaitKeys(0);
    TakeTurn();
    Score(0);
    PassTurn();
    WgmmaWait<0>();
    WgmmaHold(scores_);
    bool more = true;
    for (uint32_t n = 0; more; ++n) {
      Begin(s_.items[n & 1]);
      FreeKeys(0);
      float scale[2];
      Softmax(0, scale);
      Pack();
      AwaitValues(0);
      for (int32_t tile = 0; tile + 1 < tiles_; ++tile) AddAndScoreNext(tile);
      more = AddLastAndScoreNextItem(n + 1);
      Write();
      WgmmaWait<0>();
      WgmmaHold(scores_);
    }
  }

 private:
  // Whether there is an item n; then its query is there, too.
  __device__ bool AwaitItem(uint32_t n) {
    s_.query_full[group_].Wait(n & 1);
    return s_.items[n & 1].item.most > 0;
  }

  __device__ void Begin(const ItemBuffer<kGroups>& buffer) {
    item_ = buffer.item;
    // A group without tokens sees nothing of the first tile.
    tiles_ = max(1, Tiles(buffer.most[group_]));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      states_[i].seen = buffer.seen[group_ * kTokensOfGroup + tile_row_ + 8 * i];
      states_[i].max = -INFINITY;
      states_[i].sum = 0;
    }
  }

  // Adds the values of a tile whose weights are packed; meanwhile computes the next tile's weights.
  __device__ __forceinline__ void AddAndScoreNext(int32_t tile) {
    AwaitKeys(tile + 1);
    TakeTurn();
    Score(tile + 1);
    AddValues(tile);
    PassTurn();
    WgmmaWait<1>();
    WgmmaHold(scores_);
    FreeKeys(tile + 1);
    float scale[2];
    const bool moved = Softmax(tile + 1, scale);
    WgmmaHold(scores_);
    AwaitValues(tile + 1);  // a loop, behind which the compiler leaves the wait for this tile's
    WgmmaWait<0>();
    WgmmaHold(out_);
    FreeValues(tile);
    if (moved) Rescale(scale);
    Pack();
  }

  // The item's last turns, and whether there is an item n after it, whose first tile is then being
  // scored (or what lies there: a branch around products would keep them from overlapping).
  __device__ __forceinline__ bool AddLastAndScoreNextItem(uint32_t n) {
    const int32_t last = tiles_ - 1, all = Tiles(item_.most);
    ClearValues(last);
    TakeTurn();
    AddValues(last);
    WgmmaWait<0>();
    WgmmaHold(out_);
    FreeValues(last);
    // Tiles that only the other group's tokens see.
    for (int32_t tile = tiles_; tile < all; ++tile) {
      AwaitKeys(tile);
      Free(s_.keys_empty[Stage(tile)]);
      AwaitValues(tile);
      FreeValues(tile);
      PassTurn();
      TakeTurn();
    }
    const bool more = AwaitItem(n);
    if (more) AwaitKeys(all);
    Score(all);
    if (more || group_ == 0) PassTurn();  // all that is passed is taken
    base_ += all;
    return more;
  }

  // Turns of the tensor cores.
  __device__ void TakeTurn() {
    NamedBarrierSync(3 + group_, 128 * kGroups);
  }
  __device__ void PassTurn() {
    if constexpr (kGroups == 2) NamedBarrierArrive(4 - group_, 256);
  }

  // Of the item's tiles, where they are, and waits for them.
  __device__ int Stage(int32_t tile) const {
    return (base_ + tile) % 2;
  }
  __device__ uint32_t Parity(int32_t tile) const {
    return (base_ + tile) / 2 % 2;
  }
  __device__ void AwaitKeys(int32_t tile) {
    s_.keys_full[Stage(tile)].Wait(Parity(tile));
  }
  __device__ void AwaitValues(int32_t tile) {
    s_.values_full[Stage(tile)].Wait(Parity(tile));
  }
  __device__ void FreeKeys(int32_t tile) {
    Free(s_.keys_empty[Stage(tile)]);
    if (tile + 1 == tiles_ && lane_ == 0) s_.query_empty[group_].Arrive();
  }
  __device__ void FreeValues(int32_t tile) {
    Free(s_.values_empty[Stage(tile)]);
  }
  __device__ void Free(Mbarrier& empty) {
    __syncwarp();
    if (lane_ == 0) empty.Arrive();
  }

  // scores_ = Q K^T of a tile, before scaling.
  __device__ __forceinline__ void Score(int32_t tile) {
    const uint32_t query = WgmmaOperand(SharedAddress(s_.query[group_]));
    const uint32_t keys = WgmmaOperand(SharedAddress(s_.keys[Stage(tile)]));
    WgmmaFence();
#pragma unroll
    for (int chunk = 0; chunk < 3; ++chunk) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        WgmmaBf16<128>::Add<Major::kK, Major::kK>(
            scores_, query + (chunk * kQueryChunkBytes + k * 32) / 16,
            keys + (chunk * kChunkBytes + k * 32) / 16, chunk > 0 || k > 0);
      }
    }
    WgmmaCommit();
  }

  // Zeroes the values of positions that no token of the item sees: they may be anything, and 0 x
  // NaN is NaN. Both warpgroups do, as neither waits for the other.
  __device__ void ClearValues(int32_t tile) {
    const int32_t seen = item_.most - tile * kKeys;
    if (seen >= kKeys) return;
    for (int i = static_cast<int>(threadIdx.x % 128); i < (kKeys - seen) * 16; i += 128) {
      const int key = seen + i / 16, chunk = i % 16 / 8, part = i % 8;
      *reinterpret_cast<uint4*>(s_.values[Stage(tile)][chunk] + key * 128 + part * 16) =
          make_uint4(0, 0, 0, 0);
    }
    FenceAsyncShared();
    NamedBarrierSync(1 + group_, 128);
  }

  // out_ += weights x values of a tile; of the first, without what was there.
  __device__ __forceinline__ void AddValues(int32_t tile) {
    const uint32_t values = WgmmaOperand(SharedAddress(s_.values[Stage(tile)]), kChunkBytes);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      WgmmaBf16<128>::Add<Major::kMn>(out_, weights_ + 4 * k, values + k * 2048 / 16,
                                      tile > 0 || k > 0);
    }
    WgmmaCommit();
  }

  // Turns scores_ into weights, in place; moves max and sum on. max is not the greatest score so
  // far but within kSlack of it (powers of 2): out_ is then seldom rescaled, and lanes seldom tell
  // each other their maxima. Each token's own scores decide. Whether any max of the warp has moved,
  // by which out_ is to be scaled.
  __device__ __forceinline__ bool Softmax(int32_t tile, float (&scale)[2]) {
    constexpr float kSlack = 8;
    const int32_t begin = tile * kKeys;
    if (begin + kKeys > min(states_[0].seen, states_[1].seen)) Mask(begin);
    float best[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      best[i] = scores_[2 * i];
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        best[i] = fmaxf(best[i], fmaxf(scores_[4 * j + 2 * i], scores_[4 * j + 2 * i + 1]));
      }
      scale[i] = 1;
    }
    const bool moved =
        __any_sync(kAllLanes, best[0] * step_.scale_log2 > states_[0].max + kSlack ||
                                  best[1] * step_.scale_log2 > states_[1].max + kSlack);
    if (moved) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        best[i] = fmaxf(best[i], __shfl_xor_sync(kAllLanes, best[i], 1));
        best[i] = fmaxf(best[i], __shfl_xor_sync(kAllLanes, best[i], 2));
        best[i] *= step_.scale_log2;
        if (best[i] > states_[i].max + kSlack) {
          scale[i] = Exp2(states_[i].max - best[i]);
          states_[i].max = best[i];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Nothing seen yet: all weights are 0.
      const float base = states_[i].max == -INFINITY ? 0 : states_[i].max;
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
      states_[i].sum = fmaf(states_[i].sum, scale[i], sum);
    }
    return moved;
  }
  __device__ void Mask(int32_t begin) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int32_t key = begin + 8 * (i / 4) + 2 * (lane_ % 4) + i % 2;
      if (key >= states_[i % 4 / 2].seen) scores_[i] = -INFINITY;
    }
  }
  __device__ void Pack() {
#pragma unroll
    for (int j = 0; j < 32; ++j) weights_[j] = PackPair(scores_[2 * j], scores_[2 * j + 1]);
  }
  __device__ void Rescale(const float (&scale)[2]) {
#pragma unroll
    for (int i = 0; i < 64; ++i) out_[i] *= scale[i % 4 / 2];
  }

  __device__ __forceinline__ void Write() {
    const int64_t token = item_.token + group_ * kTokensOfGroup + tile_row_ - lane_ / 4;
    WriteTokens(step_, token * step_.heads + item_.head, item_.first != 0, states_, out_,
                s_.staging[group_]);
  }

  Shared<kGroups>& s_;
  const Step& step_;
  const int group_, lane_;
  const int tile_row_;  // of the first of two tokens; the other is 8 further
  int32_t base_ = 0;    // tiles of earlier items
  Item item_;
  int32_t tiles_;  // that some token of this warpgroup sees, at least 1
  TokenState states_[2];
  float out_[64], scores_[64];
  uint32_t weights_[32];
};

template <int kGroups>
__global__ void __launch_bounds__(128 * (kGroups + 1), 1)
    FlashKernel(const __grid_constant__ Maps maps, const __grid_constant__ Step step) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<Shared<kGroups>*>(memory);
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&maps.q);
    PrefetchTensorMap(&maps.kv);
    PrefetchTensorMap(&maps.rope);
    for (int group = 0; group < kGroups; ++group) {
      s.query_full[group].Init(1);
      s.query_empty[group].Init(4);
    }
    for (int stage = 0; stage < 2; ++stage) {
      s.keys_full[stage].Init(1);
      s.values_full[stage].Init(1);
      s.keys_empty[stage].Init(4 * kGroups);
      s.values_empty[stage].Init(4 * kGroups);
    }
    s.item_wanted.Init(1);
    s.item_found.Init(1);
    FenceMbarrierInit();
  }
  __syncthreads();
  WaitForPriorKernels();
  AllowNextKernel();
  if (threadIdx.x >= 128 * kGroups) {
    if constexpr (kGroups == 2) LowerRegisters<56>();
    const auto thread = threadIdx.x - 128 * kGroups;
    if (thread == 0) Loader<kGroups>(s, maps).Run();
    if (thread / kWarp == 1) FindItems(s, step);
  } else {
    if constexpr (kGroups == 2) RaiseRegisters<224>();
    Consumer<kGroups>(s, step).Run();
  }
}

template <int kGroups>
cudaError_t Start(const Maps& maps, Step step, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Shared<kGroups>), kTokens = kGroups * kTokensOfGroup;
  static_assert(kBytes <= 227 * 1024);
  Gpu& gpu = Gpu::OfThread();
  gpu.AllowSharedMemory(FlashKernel<kGroups>, kBytes);
  step.handed_out = gpu.work_counter();
  step.items = 0;
  for (int i = 0; i < step.pieces.count; ++i) {
    step.items += (step.pieces.of[i].tokens + kTokens - 1) / kTokens * step.heads;
  }
  return LaunchEarly(FlashKernel<kGroups>, dim3(std::min(step.items, gpu.multiprocessors())),
                     128 * (kGroups + 1), kBytes, stream, maps, step);
}

}  // namespace

cudaError_t StartFlashAttend(const Maps& maps, const Step& step, int groups, cudaStream_t stream) {
  return groups == 1 ? Start<1>(maps, step, stream) : Start<2>(maps, step, stream);
}

}  // namespace fathom::flash
