// BF16 products of few tokens on Hopper whose weights all blocks' shared memory holds at once.
//   formula:       y[t] = x[t] W^T, dense or per head
//   data mapping:  a block per 32 outputs: half of wgmma's 64 tile rows, while the other half
//                  multiplies what lies behind; tokens are its 8 columns. All weights are asked
//                  for by TMA before the kernels before have ended; then all of x
//   bytes, FLOPs:  W once; x once per block, from the L2; 2 FLOPs a weight and token
//   accumulator:   fp32 in the tensor core, in ascending order: the sums of bf16_gemm_kernel.cuh
//   builds on:     wgmma's chains, which take 20 cycles a product where those of mma.sync take 33
//   expected time: docs/design/bf16-gemm.md
#pragma once

#include <cuda_bf16.h>

#include "cuda/fence.h"
#include "cuda/mma.cuh"
#include "cuda/tma.h"
#include "cuda/wgmma_bf16.h"
#include "products/hopper/bf16_held.h"
#include "products/hopper/gemm_tiles.cuh"

namespace fathom {
namespace bf16_held {

constexpr int kThreads = 128, kOut = 32, kTokens = kBf16HeldTokens;
constexpr int kChunkBytes = 2 * kBf16Chunk;  // one tile row of the 128-byte swizzle
constexpr int kWeightBytes = kOut * kChunkBytes, kXBytes = kTokens * kChunkBytes;  // of a chunk
constexpr int kPartChunks = 2, kMostParts = 22;  // chunks that are waited for together
constexpr int kPartChannels = kPartChunks * kBf16Chunk;
constexpr int64_t kShared = 228 * 1024, kMostBlocks = 4;  // of a multiprocessor

struct Args {
  const __nv_bfloat16* x;
  void* y;
  const int32_t* live;
  int64_t x_stride, x_head_stride, y_stride, y_head_stride;
  int32_t out, parts, tokens;
  bool f32, wait_first;
};

__host__ __device__ constexpr int64_t WeightBytes(int64_t parts) {
  return parts * kPartChunks * kWeightBytes;
}
// Weights and x. The half of the tile rows that a block does not want reads a chunk further.
__host__ __device__ constexpr int64_t OperandBytes(int64_t parts) {
  const int64_t x = parts * kPartChunks * kXBytes;
  return WeightBytes(parts) + (x > kWeightBytes ? x : kWeightBytes);
}
constexpr int64_t SharedBytes(int64_t parts) {
  return OperandBytes(parts) + kMostParts * static_cast<int64_t>(sizeof(Mbarrier));
}

// A block's 32 outputs of one matrix: kThreads threads with SharedBytes(a.parts) of dynamic shared
// memory.
class Block {
 public:
  __device__ Block(const Args& a, int32_t tile, int32_t matrix)
      : a_(a),
        channel_(tile * kOut),
        matrix_(matrix),
        weights_(Memory()),
        xs_(weights_ + WeightBytes(a.parts)),
        full_(reinterpret_cast<Mbarrier*>(weights_ + OperandBytes(a.parts))) {}

  // One thread; before a barrier of all.
  __device__ __forceinline__ void AskForWeights(const CUtensorMap& map) {
    for (int part = 0; part < kMostParts; ++part) full_[part].Init(1);
    FenceMbarrierInit();
    for (int32_t part = 0; part < a_.parts; ++part) {
      full_[part].ArriveExpect(kPartChunks * kWeightBytes);
#pragma unroll
      for (int i = 0; i < kPartChunks; ++i) {
        const int32_t chunk = part * kPartChunks + i;
        TmaLoad2(weights_ + chunk * kWeightBytes, &map, full_[part], kTmaEvictFirst,
                 chunk * kBf16Chunk, matrix_ * a_.out + channel_);
      }
      Pause();
    }
  }

  // Where `channel` of a token's x is wanted; so many more as are left of eight follow it.
  __device__ __forceinline__ uint8_t* PlaceOf(int token, int channel) const {
    return xs_ + channel / kBf16Chunk * kXBytes + token * kChunkBytes +
           (channel % kBf16Chunk / 8 ^ token) * 16 + channel % 8 * 2;
  }

  // x of all tokens. All threads.
  __device__ __forceinline__ void LoadTokens() const {
    const __nv_bfloat16* const x = a_.x + matrix_ * a_.x_head_stride;
    for (int32_t i = 8 * threadIdx.x; i < a_.parts * kPartChannels; i += 8 * kThreads) {
#pragma unroll
      for (int token = 0; token < kTokens; ++token) {
        if (token >= a_.tokens) break;
        kernels::CopyAsync(SharedAddress(PlaceOf(token, i)), x + token * a_.x_stride + i, true);
      }
    }
    kernels::CommitCopies();
    kernels::WaitForCopies<0>();
    FenceAsyncShared();
  }

  // All threads, behind a barrier: writes y of the first `live` tokens. Who wrote x has fenced it
  // (FenceAsyncShared).
  __device__ __forceinline__ void Multiply(int32_t live) {
    float sums[4] = {};
    AddProducts(sums);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp >= kOut / 16) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t out = channel_ + 16 * warp + lane / 4 + i / 2 * 8, token = lane % 4 * 2 + i % 2;
      if (token >= live || out >= a_.out) continue;
      const int64_t at = out + token * a_.y_stride + matrix_ * a_.y_head_stride;
      if (a_.f32) {
        static_cast<float*>(a_.y)[at] = sums[i];
      } else {
        static_cast<__nv_bfloat16*>(a_.y)[at] = __float2bfloat16_rn(sums[i]);
      }
    }
  }

 private:
  static __device__ uint8_t* Memory() {
    extern __shared__ __align__(1024) uint8_t memory[];
    return memory;
  }
  __device__ __forceinline__ void AddProducts(float (&sums)[4]) {
    uint32_t w = Uniform(WgmmaOperand(SharedAddress(weights_)));
    uint32_t x = Uniform(WgmmaOperand(SharedAddress(xs_)));
    const int32_t count = Uniform(a_.parts);
#pragma unroll 1
    for (int32_t part = 0; part < count; ++part) {
      full_[part].Wait(0);
      WgmmaFence();
#pragma unroll
      for (int i = 0; i < kPartChunks; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          WgmmaBf16<8>::Add<Major::kK, Major::kK>(sums, w + i * (kWeightBytes / 16) + 2 * k,
                                                  x + i * (kXBytes / 16) + 2 * k, true);
        }
      }
      WgmmaCommit();
      w = Uniform(w + kPartChunks * (kWeightBytes / 16));
      x = Uniform(x + kPartChunks * (kXBytes / 16));
    }
    WgmmaWait<0>();
    WgmmaHold(sums);
  }

  // Weights that are asked for all at once hold up what the kernels before still read.
  static __device__ void Pause() {
    constexpr int64_t kCycles = 60;
    const int64_t begin = clock64();
    while (clock64() - begin < kCycles) {
    }
  }

  const Args& a_;
  const int32_t channel_, matrix_;  // the first output, of the matrix
  uint8_t* const weights_;
  uint8_t* const xs_;  // [chunk][token][64 channels], as wgmma reads it
  Mbarrier* const full_;
};

// What `tiles` x p.count blocks are given.
struct Launch {
  CUtensorMap weight_map;
  Args args;
  int64_t tiles;
  size_t shared_bytes;
};
// REQUIRES: Bf16HeldFits.
Launch LaunchOf(const Bf16ProductParams& p);

}  // namespace bf16_held
}  // namespace fathom
