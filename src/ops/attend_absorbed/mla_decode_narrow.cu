// MLA decode for at most 16 heads: s = scale (q_latent . latent + q_rope . rope), out = softmax(s)
// latent. Tiles of 64 positions are M of wgmma, 16 heads of one or two tokens N; a token is worked
// on by one block where there are many tokens, by many where there are few.
// Bytes: 1152 a cached position (FP8: 644); operations: 2176 a position and head.
// Accumulators are fp32; with an FP8 cache E4M3 products keep 14 bits over 256 channels of a score
// and over a group of values. Weights are rounded to BF16, with an FP8 cache to two E4M3 numbers;
// groups of positions are merged in fp32.
// Builds on flash decoding (parts of a context for many blocks, merged by another kernel) and on
// FlashMLA's published notes (two warpgroups take turns).
// Expected on an H200: 16 heads, 128 rows of 4096: 604 MB, 150 us; see docs/design/mla-decode.md.
#include "cuda/gpu.h"
#include "cuda/launch_early.cuh"
#include "ops/attend_absorbed/mla_decode_merge.cuh"

namespace fathom::mla {
namespace {

template <bool kFp8, bool kMany>
__global__ void __launch_bounds__(kThreads, 1)
    NarrowKernel(const __grid_constant__ Maps maps, const __grid_constant__ NarrowStep step,
                 const __grid_constant__ NarrowOutput output, float scale_log2) {
  extern __shared__ __align__(1024) uint8_t memory[];
  NarrowShared& s = *reinterpret_cast<NarrowShared*>(memory);
  if (threadIdx.x == 0) {
    s.query_full.Init(1);
    s.query_empty.Init(9);
    for (auto& factors : s.factors) factors.full.Init(1);
    for (int buffer = 0; buffer < NarrowTiles<kFp8>::kCount; ++buffer) {
      for (int half = 0; half < 2; ++half) {
        s.full[buffer][half].Init(1);
        s.empty[buffer][half].Init(4);
      }
    }
    FenceMbarrierInit();
    PrefetchTensorMap(&maps.latent);
    PrefetchTensorMap(&maps.rope);
    PrefetchTensorMap(&maps.q_latent);
    PrefetchTensorMap(&maps.q_rope);
  }
  __syncthreads();
  if (threadIdx.x / 32 != 8) WaitForPriorKernels();  // the producer looks at the step before
  const int group = static_cast<int>(threadIdx.x / 128);
  if (group == 2) {
    LowerRegisters<kFp8 ? 40 : 56>();
    if (threadIdx.x / 32 == 8) ProduceNarrow<kFp8, kMany>(s, maps, step);
    if (threadIdx.x / 32 == 9) StateKeeper(s, step, output).Run();
  } else if (group == 0) {
    RaiseRegisters<kFp8 ? 232 : 224>();
    ConsumeNarrow<0, kFp8>(s, step, output, scale_log2);
  } else {
    RaiseRegisters<kFp8 ? 232 : 224>();
    ConsumeNarrow<1, kFp8>(s, step, output, scale_log2);
  }
}

// A thread of a token's blocks has four of the values that one of NarrowConsumer had, 4 i and up.
template <int kBatch>
__device__ void MergeToken(const NarrowStep& step, const NarrowOutput& output,
                           const TokenParts& parts, bool writes = true) {
  const int place = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int group = place / 1024, i = place / 128 % 8, thread = place % 128, lane = thread % 32;
  const int first_head = i % 2 * 8 + 2 * (lane % 4);
  const auto folded = FoldParts<kBatch, 2>(output, parts, place, first_head);
  const float inverse[2] = {__frcp_rn(folded.state[0].sum), __frcp_rn(folded.state[1].sum)};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int head = first_head + j % 2;
    const int at = NarrowValue(step.fp8, group, thread / 32, i / 2, lane / 4, j / 2);
    if (writes && head < step.heads) {
      output.out[(int64_t{parts.token} * step.heads + head) * kLatent + at] =
          __float2bfloat16_rn(__fmul_rn(folded.value[j / 2][j % 2], inverse[j % 2]));
    }
  }
}

// Blocks of so many threads share a token: of few tokens many, as a multiprocessor takes a
// microsecond to read 64 KB.
constexpr unsigned kFewThreads = 64, kManyThreads = 256;
constexpr unsigned Blocks(unsigned threads) {
  return kPartValues / 4 / threads;
}
constexpr unsigned kFewTokens = 8;
// More than half of a multiprocessor's shared memory: blocks that ask for it are alone on theirs.
constexpr size_t kSharedBytesOfOne = 115 * 1024;

// Of a step of so few tokens: their parts are found while the kernels before are on their way.
__global__ void __launch_bounds__(kFewThreads)
    CombineFew(const __grid_constant__ NarrowStep step, const __grid_constant__ NarrowOutput output,
               int32_t decode_blocks) {
  constexpr int kBatch = 16;
  NarrowWalk<false> walk(step, nullptr, decode_blocks);
  const TokenParts all = walk.PartsOf(static_cast<int32_t>(blockIdx.x));
  // Where multiprocessors have room for this block early, it goes through some parts for nothing:
  // the second time is faster, probably as the instructions are there.
#pragma unroll 1
  for (int time = walk.leaves_room() ? 0 : 1; time < 2; ++time) {
    TokenParts parts = all;
    if (time == 0) {
      parts.count = min(parts.count, kBatch);
    } else {
      WaitForPriorKernels();
      AllowNextKernel();
    }
    if (parts.count > 1) MergeToken<kBatch>(step, output, parts, time == 1);
  }
}

// kTokens tokens a block. Most of many have nothing to merge.
template <int kTokens, int kBatch>
__global__ void __launch_bounds__(kManyThreads)
    CombineMany(const __grid_constant__ NarrowStep step,
                const __grid_constant__ NarrowOutput output) {
  WaitForPriorKernels();
  AllowNextKernel();
  TokenParts parts[kTokens];
  FindParts(step, static_cast<int32_t>(blockIdx.x) * kTokens, parts);
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (parts[i].count > 1) MergeToken<kBatch>(step, output, parts[i]);
  }
}

}  // namespace

template <bool kFp8, bool kMany>
static cudaError_t StartNarrowOf(const Maps& maps, const NarrowStep& step,
                                 const NarrowOutput& output, float scale_log2, int blocks,
                                 cudaStream_t stream) {
  constexpr int kBytes = sizeof(NarrowShared);
  static_assert(kBytes <= 227 * 1024);
  Gpu::OfThread().AllowSharedMemory(NarrowKernel<kFp8, kMany>, kBytes);
  return LaunchEarly(NarrowKernel<kFp8, kMany>, dim3(blocks), kThreads, kBytes, stream, maps, step,
                     output, scale_log2);
}
cudaError_t StartNarrow(const Maps& maps, const NarrowStep& step, const NarrowOutput& output,
                        float scale_log2, int blocks, cudaStream_t stream) {
  const bool many = step.tokens > blocks;
  const auto start = step.fp8 ? (many ? StartNarrowOf<true, true> : StartNarrowOf<true, false>)
                              : (many ? StartNarrowOf<false, true> : StartNarrowOf<false, false>);
  return start(maps, step, output, scale_log2, blocks, stream);
}

cudaError_t StartCombineNarrow(const NarrowStep& step, const NarrowOutput& output, int blocks,
                               cudaStream_t stream) {
  const auto tokens = static_cast<unsigned>(step.tokens);
  if (tokens <= kFewTokens && step.tokens <= blocks) {  // else decode deals items as of many
    // A long context's attention leaves no room, and its first block to end would get most of these
    // blocks; with more tokens it is better not to wait for multiprocessors.
    Gpu::OfThread().AllowSharedMemory(CombineFew, kSharedBytesOfOne);
    return LaunchEarly(CombineFew, dim3(tokens, Blocks(kFewThreads)), kFewThreads,
                       tokens == 1 ? kSharedBytesOfOne : 0, stream, step, output, blocks);
  }
  const auto start = [&](auto kernel, unsigned of_block) {
    return LaunchEarly(kernel, dim3((tokens + of_block - 1) / of_block, Blocks(kManyThreads)),
                       kManyThreads, 0, stream, step, output);
  };
  if (tokens <= 32) return start(CombineMany<1, 16>, 1);
  return tokens <= 128 ? start(CombineMany<2, 4>, 2) : start(CombineMany<8, 4>, 8);
}

}  // namespace fathom::mla
