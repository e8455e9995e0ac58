// The router's product on tensor cores, x [tokens, hidden] times gate [experts, hidden], and its
// one order of sums: products of 128 channels (a chunk) are a chain of eight tensor-core products
// from zero; chunks are added in fp32, in ascending order within each of four parts of the hidden
// state, and then the parts.
#pragma once

#include "cuda/mma.cuh"
#include "ops/route/choose_experts_cuda.cuh"

namespace fathom::kernels {

constexpr int kChunk = 128, kBlock = 32;  // channels; a block is two tensor-core products
constexpr int kBlocks = kChunk / kBlock;

// Eight channels of a tile row (a token or an expert). Lanes 4r to 4r + 3 have its block: which of
// its channels meet in a tensor-core product does not matter, if it is always the same.
template <class T>
struct Eight {
  uint32_t words[2 * sizeof(T)];
};

// From channel k of a tile row on; zeros beyond its width.
template <bool kAligned, class T>
__device__ inline Eight<T> LoadEight(const T* from, int k, int width) {
  Eight<T> eight = {};
  if constexpr (kAligned) {
    if (k >= width) return eight;
#pragma unroll
    for (int i = 0; i < 2 * static_cast<int>(sizeof(T)); i += 4) {
      const uint4 four = reinterpret_cast<const uint4*>(from + k)[i / 4];
      eight.words[i] = four.x, eight.words[i + 1] = four.y;
      eight.words[i + 2] = four.z, eight.words[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (k + i >= width) continue;
      if constexpr (sizeof(T) == 2) {
        eight.words[i / 2] |= static_cast<uint32_t>(from[k + i].bits) << i % 2 * 16;
      } else {
        eight.words[i] = __float_as_uint(from[k + i]);
      }
    }
  }
  return eight;
}

// sums[n] += x gate[n] over a block: of 16 tokens, 8 experts each. x0: of token lane / 4; x1: of
// the token 8 further; gate: of expert lane / 4.
template <int kColumns>
__device__ inline void MultiplyBlock(const Eight<BF16>& x0, const Eight<BF16>& x1,
                                     const Eight<BF16> (&gate)[kColumns],
                                     float (&sums)[kColumns][4]) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t x[4] = {x0.words[i], x1.words[i], x0.words[i + 1], x1.words[i + 1]};
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      Multiply(sums[n], x, gate[n].words[i], gate[n].words[i + 1]);
    }
  }
}
// An fp32 gate is three BF16 numbers, the sum of which it is: equal bits where one is enough.
template <int kColumns>
__device__ inline void MultiplyBlock(const Eight<BF16>& x0, const Eight<BF16>& x1,
                                     const Eight<float> (&gate)[kColumns],
                                     float (&sums)[kColumns][4]) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t x[4] = {x0.words[i], x1.words[i], x0.words[i + 1], x1.words[i + 1]};
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      uint32_t rest[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) rest[j] = gate[n].words[2 * i + j];
#pragma unroll
      for (int piece = 0; piece < 3; ++piece) {
        Multiply(sums[n], x, __byte_perm(rest[0], rest[1], 0x7632),
                 __byte_perm(rest[2], rest[3], 0x7632));
#pragma unroll
        for (uint32_t& r : rest) {
          r = __float_as_uint(__uint_as_float(r) - __uint_as_float(r & 0xffff0000u));
        }
      }
    }
  }
}

// Puts a product's tile, sums[n][i], to put(token, expert, sum) as tensor cores lay it out.
template <int kColumns, class Put>
__device__ inline void PutTile(const float (&sums)[kColumns][4], const Put& put) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const int column = 8 * n + lane % 4 * 2;
    put(lane / 4, column, sums[n][0], sums[n][1]);
    put(lane / 4 + 8, column, sums[n][2], sums[n][3]);
  }
}

// The chunks of a part.
__device__ inline int PartChunks(const Router& a) {
  return (a.hidden + kChunk * kParts - 1) / (kChunk * kParts);
}

// A block's tokens and experts, how its warps lie, and the channels of a stage.
template <class T_, int kTokens_, int kExperts_, int kDown_, int kAcross_, int kStep_, int kStages_>
struct Tile {
  using T = T_;
  static constexpr int kTokens = kTokens_, kExperts = kExperts_, kStep = kStep_;
  static constexpr int kDown = kDown_, kAcross = kAcross_, kStages = kStages_;
  static constexpr int kThreads = kDown * kAcross * kWarp;
  static constexpr int kTokenTiles = kTokens / kDown / 16, kColumns = kExperts / kAcross / 8;
  struct Stage {
    T gate[kExperts][kStep];
    BF16 x[kTokens][kStep];
  };
  static constexpr int kBytes = kStages * sizeof(Stage);
};

// The 16-byte vectors of a tile row in shared memory, so permuted that the eight lanes which read
// at once meet all banks.
template <class T>
__device__ inline int Place(int tile_row, int vector) {
  return vector ^ tile_row % 2 * (sizeof(T) == 2 ? 4 : 1);
}

// What is copied of a matrix: tile rows of `width` channels, from `first` on, below `end`.
template <class T>
struct Source {
  const T* from;
  int64_t stride;
  int first, end, width;
};

// Asks for channels [k, k + kStep) of kTileRows tile rows; zeros where there are none.
template <int kThreads, int kTileRows, int kStep, class T>
__device__ inline void CopyTileRows(const Source<T>& source, int k, T (*to)[kStep]) {
  const auto& [from, stride, first, end, width] = source;
  constexpr int kPerVector = 16 / sizeof(T), kVectors = kStep / kPerVector;
  static_assert(kThreads % kVectors == 0 && kTileRows % (kThreads / kVectors) == 0);
  const int vector = threadIdx.x % kVectors, channel = k + vector * kPerVector;
#pragma unroll
  for (int i = 0; i < kTileRows; i += kThreads / kVectors) {
    const int tile_row = i + static_cast<int>(threadIdx.x) / kVectors;
    const bool valid = first + tile_row < end && channel < width;
    CopyAsync(SharedAddressOf(&to[tile_row][Place<T>(tile_row, vector) * kPerVector]),
              valid ? from + (first + tile_row) * stride + channel : from, valid);
  }
}

template <class T, int kStep>
__device__ inline Eight<T> TakeEight(const T (*stage)[kStep], int tile_row, int block) {
  Eight<T> eight;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T)) / 2; ++i) {
    const int vector = (block * 4 + static_cast<int>(threadIdx.x) % 4) * (sizeof(T) / 2) + i;
    const uint4 four = *reinterpret_cast<const uint4*>(
        &stage[tile_row][Place<T>(tile_row, vector) * (16 / sizeof(T))]);
    eight.words[4 * i] = four.x, eight.words[4 * i + 1] = four.y;
    eight.words[4 * i + 2] = four.z, eight.words[4 * i + 3] = four.w;
  }
  return eight;
}

// The product of many tokens: a tile of a part's sums, its channels through shared memory.
//   data mapping:  a block has Tile::kTokens tokens, Tile::kExperts experts and one part of the
//                  hidden state; a warp has tiles of 16 tokens by 8 experts of it; rings of stages
//   bytes, FLOPs:  x once per block's experts, the gate once per block's tokens, sums written in
//                  fp32; 2 FLOP a weight and token, thrice with an fp32 gate
//   accumulator:   as above: a chunk's on tensor cores, a part's in fp32 registers
//   expected time: V3, 4096 tokens, on an H200: 15 GFLOP and 79 MB, 17 us by either; not measured
//                  alone (83 us with the choice of experts)
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads) RouterTiles(Router a) {
  using T = typename Tile::T;
  constexpr int kTokenTiles = Tile::kTokenTiles, kColumns = Tile::kColumns, kStep = Tile::kStep;
  extern __shared__ __align__(128) unsigned char memory[];
  auto* stages = reinterpret_cast<typename Tile::Stage*>(memory);
  AllowNextKernel();
  const int first = static_cast<int>(blockIdx.y) * Tile::kTokens;
  const int first_expert = static_cast<int>(blockIdx.x) * Tile::kExperts;
  const int part_channels = PartChunks(a) * kChunk;
  const int begin = static_cast<int>(blockIdx.z) * part_channels;
  const int end = min(begin + part_channels, a.hidden);
  const auto load_gate = [&](int k, typename Tile::Stage& stage) {
    CopyTileRows<Tile::kThreads, Tile::kExperts>(
        Source<T>{static_cast<const T*>(a.gate), a.hidden, first_expert, a.experts, end}, k,
        stage.gate);
  };
  // The gate does not depend on the kernels before.
#pragma unroll
  for (int i = 0; i < Tile::kStages - 1; ++i) load_gate(begin + i * kStep, stages[i]);
  WaitForPriorKernels();
  const int live = min(*a.live, a.tokens);
  if (first >= live) return WaitForCopies<0>();
  const auto load_x = [&](int k, typename Tile::Stage& stage) {
    CopyTileRows<Tile::kThreads, Tile::kTokens>(
        Source<BF16>{a.x.data, a.x.stride, first, live, end}, k, stage.x);
  };
#pragma unroll
  for (int i = 0; i < Tile::kStages - 1; ++i) {
    load_x(begin + i * kStep, stages[i]);
    CommitCopies();
  }
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int token = warp / Tile::kAcross * kTokenTiles * 16,
            column = warp % Tile::kAcross * kColumns * 8;
  float chunk[kTokenTiles][kColumns][4] = {}, sums[kTokenTiles][kColumns][4] = {};
  int current = 0, next = Tile::kStages - 1;
  for (int k = begin; k < end; k += kStep) {
    WaitForCopies<Tile::kStages - 2>();
    __syncthreads();
    const int ahead = k + (Tile::kStages - 1) * kStep;
    if (ahead < end) {
      load_gate(ahead, stages[next]);
      load_x(ahead, stages[next]);
    }
    CommitCopies();
    const typename Tile::Stage& stage = stages[current];
#pragma unroll
    for (int block = 0; block < kStep / kBlock; ++block) {
      Eight<T> gate[kColumns];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        gate[n] = TakeEight(stage.gate, column + 8 * n + lane / 4, block);
      }
#pragma unroll
      for (int r = 0; r < kTokenTiles; ++r) {
        const Eight<BF16> x0 = TakeEight(stage.x, token + 16 * r + lane / 4, block);
        const Eight<BF16> x1 = TakeEight(stage.x, token + 16 * r + lane / 4 + 8, block);
        MultiplyBlock(x0, x1, gate, chunk[r]);
      }
    }
    if ((k + kStep) % kChunk == 0 || k + kStep >= end) {
#pragma unroll
      for (int i = 0; i < kTokenTiles * kColumns * 4; ++i) {
        float& sum = chunk[i / 4 / kColumns][i / 4 % kColumns][i % 4];
        sums[i / 4 / kColumns][i / 4 % kColumns][i % 4] += sum;
        sum = 0;
      }
    }
    current = current + 1 == Tile::kStages ? 0 : current + 1;
    next = next + 1 == Tile::kStages ? 0 : next + 1;
  }
  WaitForCopies<0>();
#pragma unroll
  for (int r = 0; r < kTokenTiles; ++r) {
    PutTile(sums[r], [&](int i, int j, float first_sum, float second_sum) {
      const int t = first + token + 16 * r + i, e = first_expert + column + j;
      if (t >= live || e >= a.experts) return;
      float* const to = a.PartSums(blockIdx.z, t) + e;
      if (a.experts % 2 == 0) {
        *reinterpret_cast<float2*>(to) = {first_sum, second_sum};
      } else {
        to[0] = first_sum;
        if (e + 1 < a.experts) to[1] = second_sum;
      }
    });
  }
}

}  // namespace fathom::kernels
