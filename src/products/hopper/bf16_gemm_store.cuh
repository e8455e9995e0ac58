// The end of a tile of the BF16 product of many tokens: BF16, F32, or silu(gate) * up in BF16.
#pragma once

#include "products/cuda/silu_mul.cuh"
#include "products/hopper/bf16_gemm_tile.cuh"

namespace fathom::bf16_gemm {

// A thread's results of a tile, in pairs.
template <class T>
using Results = uint32_t[T::kMmaOut / 4];

template <class T>
__device__ __forceinline__ void Pack(Results<T>& results, const float (&sums)[T::kMmaN / 2]) {
#pragma unroll
  for (int i = 0; i < T::kMmaOut / 4; ++i) {
    float y[2] = {sums[2 * i], sums[2 * i + 1]};
    if constexpr (T::kSilu) {
      y[0] = kernels::SiluMul(y[0], sums[2 * i + T::kMmaN / 4]);
      y[1] = kernels::SiluMul(y[1], sums[2 * i + 1 + T::kMmaN / 4]);
    }
    results[i] = PackBf16(y[0], y[1]);
  }
}

// Where a warp's 16 tokens and the channels from `first` on lie.
template <class T>
struct Part {
  int32_t token, tokens, first, channels;
  int64_t at;  // of the output
  __device__ __forceinline__ Part(const Args& args, const Work& work, int warp, int32_t offset)
      : token(warp % (4 * T::kDown) * 16),
        tokens(work.tokens - token),
        first(warp / (4 * T::kDown) * T::kMmaOut + offset),
        channels(work.channels - first),
        at((work.token + token) * args.out_stride + work.group * args.out_head_stride +
           work.channel + first) {}
};

// Stores piece kPiece of this warp's results: kStaged channels, through its staging memory, so that
// tokens can be left out and stores are whole sectors.
template <class T, int kPiece>
__device__ __forceinline__ void StorePiece(const Results<T>& results, Shared<T>& shared,
                                           const Args& args, const Work& work, WarpLane thread) {
  constexpr int kFirst = kPiece * T::kStaged, kChunks = T::kStaged / 8;
  const Part<T> part(args, work, thread.warp, kFirst);
  uint8_t* staging = shared.staging[thread.warp];
#pragma unroll
  for (int chunk = 0; chunk < kChunks; chunk += 2) {
    StagePacked(staging, chunk, results + kFirst / 4 + chunk * 2, thread.lane);
  }
  __syncwarp();
  StoreStaged<kChunks>(staging, static_cast<uint8_t*>(args.out) + part.at * 2, args.out_stride * 2,
                       part.tokens, part.channels * 2, thread.lane);
  __syncwarp();
}

template <class T, int kPiece = 0>
__device__ __forceinline__ void StorePiece(int piece, const Results<T>& results, Shared<T>& shared,
                                           const Args& args, const Work& work, WarpLane thread) {
  if constexpr (kPiece < T::kPieces) {
    if (piece == kPiece) return StorePiece<T, kPiece>(results, shared, args, work, thread);
    StorePiece<T, kPiece + 1>(piece, results, shared, args, work, thread);
  }
}

}  // namespace fathom::bf16_gemm
