// Expanded MLA over one chunk of the context by mma.sync, for heads of 128 + 64 and values of 128.
//   formula:       attention over the chunk, merged into (out, lse) by log-sum-exp
//   data mapping:  a block per head and 64 tokens, a warp per 16 of them; tiles of 64 positions go
//                  through shared memory, keys of the next tile while values are multiplied
//   bytes, FLOPs:  a head's keys and values once per 64 tokens, from L2; 640 FLOP a token, head and
//                  position of the tiles that a block's tokens see
//   accumulator:   fp32; weights are rounded to BF16 for the sum over values
//   builds on:     FlashAttention-2: tokens cut between blocks and warps, the online softmax
//   expected time: 512 tokens, 512 positions, 16 heads: 1.7 GFLOP, some 15 us; not measured
#include "cuda/mma.cuh"
#include "ops/attend_expanded/attend_chunk_cuda.h"
#include "ops/attend_expanded/row_piece.cuh"

namespace fathom {
namespace kernels {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kTokens = 16 * kWarps, kTile = 64;  // tokens, positions
constexpr int kKey = kChunkNope + kChunkRope, kKeyVectors = kKey / 8;
constexpr int kValueVectors = kChunkValue / 8;
constexpr int kQueryBytes = kTokens * kKey * 2, kKeyBytes = kTile * kKey * 2;
constexpr int kSharedBytes = kQueryBytes + kKeyBytes + kTile * kChunkValue * 2;

// Byte offset of a tile row's vector of 16 bytes, so that eight tile rows' vectors lie in different
// banks.
template <int kVectors>
__device__ uint32_t Offset(int tile_row, int v) {
  return static_cast<uint32_t>((tile_row * kVectors + (v ^ (tile_row & 7))) * 16);
}

__device__ inline void LoadQueries(const DevicePiece& p, int64_t first, int64_t head, uint32_t to) {
  for (int i = threadIdx.x; i < kTokens * kKeyVectors; i += kThreads) {
    const int r = i / kKeyVectors, v = i % kKeyVectors;
    const bool valid = first + r < p.tokens;
    const BF16* from = p.q + (first + (valid ? r : 0)) * p.q_stride + head * kKey + v * 8;
    CopyAsync(to + Offset<kKeyVectors>(r, v), from, valid);
  }
}
__device__ inline void LoadKeys(const DevicePiece& p, int begin, int end, int64_t head,
                                uint32_t to) {
  for (int i = threadIdx.x; i < kTile * kKeyVectors; i += kThreads) {
    const int r = i / kKeyVectors, v = i % kKeyVectors;
    const bool valid = begin + r < end;
    const int64_t position = valid ? begin + r : 0;
    const BF16* from = v * 8 < kChunkNope
                           ? p.kv + (position * p.heads + head) * (kChunkNope + kChunkValue) + v * 8
                           : p.rope + position * kChunkRope + (v * 8 - kChunkNope);
    CopyAsync(to + Offset<kKeyVectors>(r, v), from, valid);
  }
}
__device__ inline void LoadValues(const DevicePiece& p, int begin, int end, int64_t head,
                                  uint32_t to) {
  for (int i = threadIdx.x; i < kTile * kValueVectors; i += kThreads) {
    const int r = i / kValueVectors, v = i % kValueVectors;
    const bool valid = begin + r < end;
    const int64_t position = valid ? begin + r : 0;
    const BF16* from =
        p.kv + (position * p.heads + head) * (kChunkNope + kChunkValue) + kChunkNope + v * 8;
    CopyAsync(to + Offset<kValueVectors>(r, v), from, valid);
  }
}

// Scores of the warp's 16 tokens against a tile, unscaled.
__device__ inline void Scores(uint32_t queries, uint32_t keys, float (&s)[kTile / 8][4]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = 0;
  }
#pragma unroll
  for (int pair = 0; pair < kKey / 32; ++pair) {
    uint32_t a[2][4];
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      LoadMatrices(a[step], queries + Offset<kKeyVectors>(warp * 16 + lane % 16,
                                                          pair * 4 + step * 2 + lane / 16));
    }
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
      uint32_t b[4];
      LoadMatrices(b, keys + Offset<kKeyVectors>(n * 8 + lane % 8, pair * 4 + lane / 8));
      Multiply(s[n], a[0], b[0], b[1]);
      Multiply(s[n], a[1], b[2], b[3]);
    }
  }
}

// Of the thread's two tokens (tile rows lane / 4 and lane / 4 + 8 of the warp's).
struct Softmax {
  int visible[2];
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
};

// Scores become weights; sums so far are to be multiplied by `rescale`.
__device__ inline void Weigh(float scale, int begin, Softmax& state, float (&s)[kTile / 8][4],
                             float (&rescale)[2]) {
  const int column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float max = state.max[r];
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = s[n][2 * r + i];
        x = begin + n * 8 + column + i < state.visible[r] ? x * scale : -INFINITY;
        max = fmaxf(max, x);
      }
    }
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 1));
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 2));
    const float base = max == -INFINITY ? 0 : max;  // nothing visible yet
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) sum += s[n][2 * r + i] = expf(s[n][2 * r + i] - base);
    }
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    rescale[r] = expf(state.max[r] - base);
    state.sum[r] = state.sum[r] * rescale[r] + sum;
    state.max[r] = max;
  }
}

__device__ inline uint32_t Pack(float low, float high) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&two);
}

__device__ inline void AddValues(uint32_t values, const float (&s)[kTile / 8][4],
                                 const float (&rescale)[2], float (&out)[kChunkValue / 8][4]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int n = 0; n < kChunkValue / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[n][i] *= rescale[i / 2];
  }
#pragma unroll
  for (int step = 0; step < kTile / 16; ++step) {
    const uint32_t a[4] = {
        Pack(s[2 * step][0], s[2 * step][1]), Pack(s[2 * step][2], s[2 * step][3]),
        Pack(s[2 * step + 1][0], s[2 * step + 1][1]), Pack(s[2 * step + 1][2], s[2 * step + 1][3])};
#pragma unroll
    for (int n = 0; n < kChunkValue / 16; ++n) {
      uint32_t b[4];
      LoadMatricesTransposed(
          b, values + Offset<kValueVectors>(step * 16 + lane % 16, n * 2 + lane / 16));
      Multiply(out[2 * n], a, b[0], b[1]);
      Multiply(out[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// Merges the chunk into what the chunks before left, for the thread's token r.
__device__ inline void Merge(const DevicePiece& p, int64_t token, int64_t head, int r,
                             const Softmax& state, const float (&sums)[kChunkValue / 8][4]) {
  if (token >= p.tokens || state.visible[r] <= 0) return;
  const int64_t at = token * p.heads + head;
  const float chunk = state.max[r] + logf(state.sum[r]);
  float keep = 0, take = 1 / state.sum[r], merged = chunk;
  if (!p.first) {
    const float lse = p.lse[at], max = fmaxf(lse, chunk);
    merged = max + logf(expf(lse - max) + expf(chunk - max));
    keep = expf(lse - merged);
    take *= expf(chunk - merged);
  }
  __syncwarp(0xfu << (threadIdx.x % kWarp & ~3u));  // a token's four threads have read its lse
  BF16* out = p.out + at * kChunkValue + threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < kChunkValue / 8; ++n) {
    float x = sums[n][2 * r] * take, y = sums[n][2 * r + 1] * take;
    if (!p.first) {
      x += Load(out + n * 8) * keep;
      y += Load(out + n * 8 + 1) * keep;
    }
    *reinterpret_cast<uint32_t*>(out + n * 8) = Pack(x, y);
  }
  if (threadIdx.x % 4 == 0) p.lse[at] = merged;
}

__global__ void __launch_bounds__(kThreads) AttendChunk(const __grid_constant__ DevicePiece p) {
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t queries = SharedAddressOf(shared), keys = queries + kQueryBytes;
  const uint32_t values = keys + kKeyBytes;
  const int64_t first = int64_t{blockIdx.x} * kTokens, head = blockIdx.y;
  const int64_t token = first + threadIdx.x / kWarp * 16 + threadIdx.x % kWarp / 4;
  AfterPriorKernels();
  Softmax state;
  int most = 0;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t t = token + 8 * r;
    const int64_t n = t < p.tokens ? p.positions[t] - p.context_begin + 1 : 0;
    state.visible[r] = static_cast<int>(max(int64_t{0}, min(n, p.context)));
    most = max(most, state.visible[r]);
  }
  // The positions that any of the block's tokens sees.
  __shared__ int block_most;
  if (threadIdx.x == 0) block_most = 0;
  __syncthreads();
  atomicMax(&block_most, most);
  __syncthreads();
  const int end = block_most;
  if (end == 0) return;

  LoadQueries(p, first, head, queries);
  LoadKeys(p, 0, end, head, keys);
  CommitCopies();
  float out[kChunkValue / 8][4] = {};
  for (int begin = 0; begin < end; begin += kTile) {
    float s[kTile / 8][4], rescale[2];
    WaitForCopies<0>();
    __syncthreads();
    LoadValues(p, begin, end, head, values);
    CommitCopies();
    Scores(queries, keys, s);
    __syncthreads();  // the keys' memory takes the next tile
    if (begin + kTile < end) LoadKeys(p, begin + kTile, end, head, keys);
    CommitCopies();
    Weigh(p.scale, begin, state, s, rescale);
    WaitForCopies<1>();
    __syncthreads();
    AddValues(values, s, rescale, out);
  }
  for (int r = 0; r < 2; ++r) Merge(p, token + 8 * r, head, r, state, out);
}

}  // namespace kernels

void LaunchAttendChunk(const RowPiece& a, float scale, cudaStream_t stream) {
  using namespace kernels;
  Gpu::OfThread().AllowSharedMemory(AttendChunk, kSharedBytes);
  const DevicePiece piece(a, scale);
  const dim3 grid(Blocks(piece.tokens, kTokens), static_cast<unsigned>(piece.heads));
  LaunchOverlapped(AttendChunk, grid, kThreads, kSharedBytes, stream, piece);
}

}  // namespace fathom
