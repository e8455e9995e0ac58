// Expanded MLA over pieces of rows' contexts on CUDA, for every shape.
//   formula:       attention over a piece, merged into (out, lse) by log-sum-exp
//   data mapping:  a block per head and 8 tokens: a warp per position for the scores, a warp per
//                  two tokens for the softmax, a thread per channel for the sum over values
//   bytes, FLOPs:  a head's keys and values once per 8 tokens, from L2; 2 (nope + rope + vdim) FLOP
//                  a token, head and visible position
//   accumulator:   fp32; scores: lanes, then a tree; outputs: in order of position
//   builds on:     FlashAttention's division of the softmax (arXiv:2205.14135, section 3.1): pieces
//                  are merged by their log-sum-exp; within a piece all scores are formed first
//   expected time: 512 tokens, 512 positions, 16 heads of 192 + 128: 1.3 GFLOP of plain FMA; not
//                  measured
#include <algorithm>

#include "ops/attend_expanded/attend_chunk_cuda.h"
#include "ops/attend_expanded/row_piece.cuh"

namespace fathom {
namespace kernels {

constexpr int kTokens = 8, kWarps = 4, kThreads = kWarps * kWarp;
constexpr int32_t kMostPositions = 512;  // of a launch

// scores[r][j] for every visible position j of the block's tokens.
__device__ inline void Score(const DevicePiece& a, int64_t head, const float* q, const int* visible,
                             int most, float* scores) {
  const int lane = threadIdx.x % kWarp;
  const int64_t width = a.nope + a.rope_dim;
  for (int j = threadIdx.x / kWarp; j < most; j += kWarps) {
    const BF16* k = a.kv + (j * a.heads + head) * (a.nope + a.vdim);
    const BF16* rope = a.rope + j * a.rope_dim - a.nope;
    float sums[kTokens] = {};
    for (int64_t c = lane; c < width; c += kWarp) {
      const float x = Load((c < a.nope ? k : rope) + c);
#pragma unroll
      for (int r = 0; r < kTokens; ++r) sums[r] += q[r * width + c] * x;
    }
#pragma unroll
    for (int r = 0; r < kTokens; ++r) {
      const float sum = WarpSum(sums[r]);
      if (lane == r && j < visible[r]) scores[r * a.context + j] = a.scale * sum;
    }
  }
}

// Scores become exp(score - max), in the order of lanes; max and sum of a token to shared memory.
__device__ inline void Softmax(int64_t context, const int* visible, float* scores, float* maxima,
                               float* sums) {
  const int lane = threadIdx.x % kWarp;
  for (int r = threadIdx.x / kWarp; r < kTokens; r += kWarps) {
    float* of_token = scores + r * context;
    float max = -INFINITY, sum = 0;
    for (int j = lane; j < visible[r]; j += kWarp) max = fmaxf(max, of_token[j]);
    max = WarpMax(max);
    for (int j = lane; j < visible[r]; j += kWarp) sum += of_token[j] = expf(of_token[j] - max);
    sum = WarpSum(sum);
    if (lane == 0) {
      maxima[r] = max;
      sums[r] = sum;
    }
  }
}

// What the chunk adds to one token's channel, and to its lse.
__device__ inline void Merge(const DevicePiece& a, int64_t at, int64_t c, float chunk,
                             float chunk_lse) {
  BF16* out = a.out + at * a.vdim + c;
  if (a.first) {
    Store(out, chunk);
    return;
  }
  const float lse = a.lse[at], max = fmaxf(lse, chunk_lse);
  const float merged = max + logf(expf(lse - max) + expf(chunk_lse - max));
  Store(out, Load(out) * expf(lse - merged) + chunk * expf(chunk_lse - merged));
}

__global__ void __launch_bounds__(kThreads) AttendExpanded(const __grid_constant__ DevicePiece a) {
  extern __shared__ float shared[];
  __shared__ int visible[kTokens];
  __shared__ float maxima[kTokens], sums[kTokens];
  const int64_t first = int64_t{blockIdx.x} * kTokens, head = blockIdx.y;
  const int64_t width = a.nope + a.rope_dim;
  float *q = shared, *scores = shared + kTokens * width;
  if (threadIdx.x < kTokens) {
    const int64_t t = first + threadIdx.x;
    const int64_t n = t < a.tokens ? a.positions[t] - a.context_begin + 1 : 0;
    visible[threadIdx.x] = static_cast<int>(max(int64_t{0}, min(n, a.context)));
  }
  for (int64_t i = threadIdx.x; i < kTokens * width; i += kThreads) {
    const int64_t t = min(first + i / width, a.tokens - 1);
    q[i] = Load(a.q + t * a.q_stride + head * width + i % width);
  }
  __syncthreads();
  int most = 0;
#pragma unroll
  for (int r = 0; r < kTokens; ++r) most = max(most, visible[r]);
  Score(a, head, q, visible, most, scores);
  __syncthreads();
  Softmax(a.context, visible, scores, maxima, sums);
  __syncthreads();
  for (int64_t c = threadIdx.x; c < a.vdim; c += kThreads) {
    float x[kTokens] = {};
    for (int j = 0; j < most; ++j) {
      const float v = Load(a.kv + (j * a.heads + head) * (a.nope + a.vdim) + a.nope + c);
#pragma unroll
      for (int r = 0; r < kTokens; ++r) {
        if (j < visible[r]) x[r] += scores[r * a.context + j] * v;
      }
    }
#pragma unroll
    for (int r = 0; r < kTokens; ++r) {
      if (visible[r] == 0) continue;
      Merge(a, (first + r) * a.heads + head, c, x[r] / sums[r], maxima[r] + logf(sums[r]));
    }
  }
  __syncthreads();  // every channel has read the lse
  if (threadIdx.x < kTokens && visible[threadIdx.x] > 0) {
    float* lse = a.lse + (first + threadIdx.x) * a.heads + head;
    const float chunk = maxima[threadIdx.x] + logf(sums[threadIdx.x]);
    const float max = fmaxf(*lse, chunk);
    *lse = a.first ? chunk : max + logf(expf(*lse - max) + expf(chunk - max));
  }
}

}  // namespace kernels

static void AttendPiece(CudaStream& stream, const RowPiece& a, float scale) {
  using namespace kernels;
  const DevicePiece piece(a, scale);
  const int64_t width = piece.nope + piece.rope_dim;
  const size_t shared = static_cast<size_t>(kTokens * (width + piece.context)) * sizeof(float);
  CHECK(shared <= size_t{46} << 10, "attend_expanded: q of {} channels", width);
  const dim3 grid(Blocks(piece.tokens, kTokens), static_cast<unsigned>(piece.heads));
  AttendExpanded<<<grid, kThreads, shared, stream.get()>>>(piece);
}

void AttendExpandedCuda(OpContext& context, const AttendExpandedArgs& a) {
  using namespace kernels;
  CudaStream& stream = Cuda(context);
  const bool published = a.q.dim(2) == kChunkNope + kChunkRope && a.rope.dim(1) == kChunkRope &&
                         a.out.dim(2) == kChunkValue && a.q.stride(0) % 8 == 0;
  for (const ContextPiece& piece : a.pieces) {
    if (piece.tokens == 0 || a.q.dim(1) == 0) continue;
    if (published) {
      LaunchAttendChunk(RowPiece(a, piece), a.scale, stream.get());
      continue;
    }
    // Scores of a few tokens lie in shared memory.
    for (int32_t done = 0; done < piece.count; done += kMostPositions) {
      ContextPiece part = piece;
      part.begin += done;
      part.at += done;
      part.count = std::min(piece.count - done, kMostPositions);
      AttendPiece(stream, RowPiece(a, part), a.scale);
    }
  }
  stream.CheckLaunch("attend_expanded", a.q);
}

}  // namespace fathom
