// The columns kernel: the wide MLA decode for few items. The blocks of a cluster share an item:
// each scores every kBlocks-th tile and sums up the product of all weights with its own columns of
// the values. So a part's tiles are added in the same order, to the same bits, as by one block.
//
// A round is kBlocks tiles, one for each block. Blocks tell each other their tile's greatest
// scores, so that all know the running maxima, and then leave their tile's weights for the others.
#pragma once

#include "cuda/fence.h"
#include "cuda/wgmma_bf16.h"
#include "ops/attend_absorbed/mla_decode_columns_produce.cuh"
#include "ops/attend_absorbed/mla_decode_finish.cuh"

namespace fathom::mla {

enum ColumnsBarrier : uint32_t { kSummerThreads = 1 };

// The warpgroup that scores this block's tiles. It is at most three rounds ahead of every block's
// sums, which is why there are four `best`.
template <int kBlocks>
class Scorer {
 public:
  using S = ColumnsShared<kBlocks>;
  __device__ Scorer(S& s, const Step& step, float scale_log2)
      : s_(s),
        step_(step),
        scale_log2_(scale_log2),
        block_of_cluster_(static_cast<int32_t>(ClusterRank())),
        pair_(static_cast<int>(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4)) {}

  __device__ void Run() {
    for (ItemReader<kBlocks> items(s_);;) {
      const Item item = items.Next();
      if (item.tokens == 0) return;
      tiles_ = item.tiles();
      position_ = item.position - item.begin();
#pragma unroll
      for (int i = 0; i < 2; ++i) max_[i] = RunningMax();
      if (block_of_cluster_ < tiles_) HoldQuery();
      for (int32_t first = 0; first < tiles_; first += kBlocks) Round(first + block_of_cluster_);
    }
  }

 private:
  __device__ void HoldQuery() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      s_.keys_full[half].Wait(keys_parity_);
#pragma unroll
      for (int i = 16 * half; i < 16 + 20 * half; ++i) {
        LoadFragment(SharedAddress(s_.keys[i / 4]), i % 4, query_ + 4 * i);
      }
      FenceAsyncShared();  // nothing has used them yet: keys might come before they are read
      FreeKeys(half);
    }
    keys_parity_ ^= 1;
  }

  __device__ void Score() {
    const uint32_t keys = WgmmaOperand(SharedAddress(s_.keys));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      s_.keys_full[half].Wait(keys_parity_);
      WgmmaFence();
#pragma unroll
      for (int i = 4 * half; i < 4 + 5 * half; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          WgmmaBf16<64>::Add<Major::kK>(scores_, query_ + 16 * i + 4 * k,
                                        keys + (i * kChunkBytes + k * 32) / 16, i + k > 0);
        }
      }
      WgmmaCommit();
    }
    WgmmaWait<1>();
    FreeKeys(0);
    WgmmaWait<0>();
    WgmmaHold(scores_);
    FreeKeys(1);
    keys_parity_ ^= 1;
  }
  __device__ void FreeKeys(int half) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) s_.keys_empty[half].Arrive();
  }

  // The round of which `tile` is this block's.
  __device__ void Round(int32_t tile) {
    float best[2] = {-INFINITY, -INFINITY}, base[2];
    if (tile < tiles_) {
      Score();
      if ((tile + 1) * kKeys > position_ + 1) {
        const int32_t seen[2] = {position_ + pair_ / step_.heads,
                                 position_ + (pair_ + 8) / step_.heads};
        MaskScores(scores_, tile * kKeys, seen);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) best[i] = BestScore(scores_, i, scale_log2_);
    }
    // Before maxima go out, which all blocks must have a place for: what left this buffer was sent
    // once all had summed up this block's tile of four rounds ago, and so had read its maxima.
    const int buffer = round_ % 2;
    s_.weights_empty[buffer].Wait(round_ / 2 % 2 ^ 1);
    ExchangeBest(best, base);
    if (tile < tiles_) {
      uint32_t weights[16];
      MakeWeights(scores_, scale_log2_, base, weights);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        StoreFragment(SharedAddress(s_.weights[buffer]), k, weights + 4 * k);
      }
      FenceAsyncShared();
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) s_.weights_full[buffer].Arrive();
    ++round_;
  }

  // Tells all blocks this tile's greatest scores; `base`: what its weights are relative to.
  __device__ void ExchangeBest(const float (&best)[2], float (&base)[2]) {
    const int parity = round_ % 4;
    if (threadIdx.x == 0) s_.best_full[parity].ArriveExpect(sizeof(s_.best[0]));
      // A quad has both pairs; its lanes share the blocks.
#pragma unroll
    for (uint32_t peer = threadIdx.x % 4; peer < kBlocks; peer += 4) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        StoreAtPeer(PeerAddress(&s_.best[parity][block_of_cluster_][pair_ + 8 * i], peer), best[i],
                    PeerAddress(&s_.best_full[parity], peer));
      }
    }
    s_.best_full[parity].Wait(round_ / 4 % 2);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        max_[i].Next(s_.best[parity][block][pair_ + 8 * i]);
        if (block == block_of_cluster_) base[i] = max_[i].base();
      }
    }
  }

  S& s_;
  const Step& step_;
  const float scale_log2_;
  const int32_t block_of_cluster_;
  const int pair_;            // of the 64; the other is 8 further
  int32_t tiles_, position_;  // of the item: tiles; where its first token is in its part
  int32_t round_ = 0;         // over all items
  uint32_t keys_parity_ = 0;
  uint32_t query_[16 * kChunks];  // [chunk][k][4]
  float scores_[32];
  RunningMax max_[2];
};

// The warpgroup that sums up this block's columns.
template <int kBlocks, bool kFp8>
class Summer {
 public:
  using S = ColumnsShared<kBlocks>;
  __device__ Summer(S& s, const Step& step, const Output& output)
      : s_(s),
        step_(step),
        output_(output),
        block_of_cluster_(static_cast<int32_t>(ClusterRank())),
        pair_(static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4)) {}

  __device__ void Run() {
    for (ItemReader<kBlocks> items(s_);;) {
      const Item item = items.Next();
      if (item.tokens == 0) return;
#pragma unroll
      for (int i = 0; i < S::kColumns / 2; ++i) out_[i] = 0;
#pragma unroll
      for (int i = 0; i < 2; ++i) max_[i] = RunningMax(), sum_[0][i] = sum_[1][i] = 0;
      const int32_t tiles = item.tiles(), end = item.last_position() + 1 - item.begin();
      for (int32_t tile = 0; tile < tiles; tile += kBlocks, ++round_) Round(tile, tiles, end);
      Finish(item);
    }
  }

 private:
  // Tiles from `first` on.
  __device__ void Round(int32_t first, int32_t tiles, int32_t end) {
    const int parity = round_ % 4;
    s_.best_full[parity].Wait(round_ / 4 % 2);
    float scale[kBlocks][2];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scale[block][i] = max_[i].Next(s_.best[parity][block][pair_ + 8 * i]);
      }
    }
    // Products of two tiles are on their way: a tile's weights are read while those before run.
    uint32_t weights[2][16];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const bool here = first + block < tiles;
      s_.slot_full[block].Wait(parity_);
      if (here) {
        WgmmaWait<1>();
      } else {
        WgmmaWait<0>();
      }
      if (block > 1) FreeSlot(block - 2);
      if (here) {
        const int32_t seen = end - (first + block) * kKeys;
        if (seen < kKeys) ClearValues(s_.slots[block], seen);
        Rescale(scale[block]);
        Add(s_.slots[block], block % 2, weights[block % 2]);
      }
    }
    WgmmaWait<0>();
    WgmmaHold(out_);
    FreeSlot(kBlocks - 2);
    FreeSlot(kBlocks - 1);
    parity_ ^= 1;
  }

  __device__ void Rescale(const float (&scale)[2]) {
    if (!__any_sync(kAllLanes, scale[0] != 1 || scale[1] != 1)) return;
    WgmmaWait<0>();
    WgmmaHold(out_);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum_[0][i] = __fmul_rn(sum_[0][i], scale[i]);
      sum_[1][i] = __fmul_rn(sum_[1][i], scale[i]);
#pragma unroll
      for (int j = 0; j < S::kColumns / 8; ++j) {
        out_[4 * j + 2 * i] *= scale[i];
        out_[4 * j + 2 * i + 1] *= scale[i];
      }
    }
  }

  // out_ += weights x values of a tile with this parity; without waiting. Beside warps that widen
  // there are too few registers for weights of two products.
  __device__ void Add(const typename S::Slot& slot, int parity, uint32_t (&weights)[16]) {
    const uint32_t left = SharedAddress(slot.weights);
    const auto take = [&] {
#pragma unroll
      for (int k = 0; k < 4; ++k) LoadFragment(left, k, weights + 4 * k);
    };
    if (!kFp8) take();
    WgmmaFence();
    const uint32_t values = WgmmaOperand(SharedAddress(slot.values), kChunkBytes);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (kFp8) {
        WgmmaBf16<S::kColumns>::template Add<Major::kK, Major::kMn>(
            out_, WgmmaOperand(left) + k * 32 / 16, values + k * 2048 / 16, true);
      } else {
        WgmmaBf16<S::kColumns>::template Add<Major::kMn>(out_, weights + 4 * k,
                                                         values + k * 2048 / 16, true);
      }
    }
    WgmmaCommit();
    if (kFp8) take();
    AddWeights(weights, sum_[parity]);
  }

  // Zeroes the values of positions that no token of the item sees, as in the kernel of one block.
  __device__ void ClearValues(typename S::Slot& slot, int32_t seen) {
    for (int i = static_cast<int>(threadIdx.x % 128); i < (kKeys - seen) * 8 * S::kValueChunks;
         i += 128) {
      const int key = seen + i / (8 * S::kValueChunks), part = i % (8 * S::kValueChunks);
      *reinterpret_cast<uint4*>(slot.values[part / 8] + key * 128 + part % 8 * 16) =
          make_uint4(0, 0, 0, 0);
    }
    FenceAsyncShared();
    NamedBarrierSync(kSummerThreads, 128);
  }

  __device__ void FreeSlot(int block) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      s_.slot_empty[block].Arrive();
      s_.summed[round_ % 2].ArriveAt(block);
    }
  }

  __device__ void Finish(const Item& item) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int parity = 0; parity < 2; ++parity) {
        float& sum = sum_[parity][i];
        sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 2));
      }
      PairSums<S::kColumns / 8> sums = {.pair = pair_ + 8 * i,
                                        .first_column = S::kColumns * block_of_cluster_,
                                        .maximum = max_[i].value,
                                        .weights = __fadd_rn(sum_[0][i], sum_[1][i])};
#pragma unroll
      for (int j = 0; j < S::kColumns / 4; ++j) {
        sums.values[j] = out_[j / 2 * 4 + 2 * i + j % 2];
      }
      WritePair(step_, output_, item, sums);
    }
  }

  S& s_;
  const Step& step_;
  const Output& output_;
  const int32_t block_of_cluster_;
  const int pair_;       // of the 64; the other is 8 further
  int32_t round_ = 0;    // over all items
  uint32_t parity_ = 0;  // of the slots
  float out_[S::kColumns / 2];
  float sum_[2][2];  // by parity of the tile, as two warpgroups have them
  RunningMax max_[2];
};

}  // namespace fathom::mla
