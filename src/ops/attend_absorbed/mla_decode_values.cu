// Behind MLA decode of one token with at most 16 heads: parts merged, and multiplied by W_UV.
//   formula:       y[t, h] = out[t, h] W[h]^T of the out that mla_decode_narrow.cu tells of
//   data mapping:  a cluster of four blocks for a head: each merges a quarter of its 512 values,
//                  sends it to all four, and multiplies 32 outputs' weights, which came meanwhile
//   bytes, FLOPs:  parts twice, from the L2, as a load holds two heads; W once; 2 FLOPs a weight
//   accumulator:   that of the merge, rounded to BF16, and that of bf16_held.cuh: bits are those of
//                  the two kernels that this one replaces
//   builds on:     one launch less, and results that do not go through memory
//   expected time: 16 heads, a context of 1024: 2.6 us; docs/design/mla-decode.md
#include "cuda/cluster.h"
#include "cuda/launch_clusters.cuh"
#include "ops/attend_absorbed/mla_decode_merge.cuh"
#include "products/hopper/bf16_held.cuh"

namespace fathom::mla {
namespace {

constexpr int kBlocks = kValuesOut / bf16_held::kOut;  // of a cluster
constexpr int kShareThreads = kLatent / kBlocks / 2;   // two values each
static_assert(kBlocks == 4 && kShareThreads == 64);
static_assert(bf16_held::SharedBytes(kLatent / bf16_held::kPartChannels) <= 48 * 1024);

// Which values of a head a thread has: those of a thread of NarrowConsumer, beside those of another
// head.
struct Share {
  __device__ Share(int head, int rank)
      : head(head),
        group(rank / 2),
        chunk(rank % 2 * 2 + static_cast<int>(threadIdx.x) % kShareThreads / 32),
        warp(static_cast<int>(threadIdx.x) % 32 / 8),
        row(static_cast<int>(threadIdx.x) % 8) {}
  __device__ int PlaceInPart() const {
    return ((group * 8 + chunk * 2 + head / 8) * 128 + 32 * warp + 4 * row) + head % 8 / 2;
  }
  __device__ int Value(bool fp8, int of_row, int second) const {
    return NarrowValue(fp8, group, warp, chunk, of_row, second);
  }
  int head, group, chunk, warp, row;
};

// The share's two values of a token.
template <int kBatch>
__device__ float2 Merge(const NarrowOutput& output, const TokenParts& parts, const Share& share) {
  const auto folded = FoldParts<kBatch, 1>(output, parts, share.PlaceInPart(), share.head);
  const float inverse = __frcp_rn(folded.state[0].sum);
  return {__fmul_rn(folded.value[0][0], inverse), __fmul_rn(folded.value[1][0], inverse)};
}

// Of a context of one part attention has written the result. As integers: __ldcg of BF16, unlike
// all others, is an asm that the compiler may move over the wait.
__device__ float2 Result(const NarrowStep& step, const NarrowOutput& output, const Share& share) {
  const auto* const out =
      reinterpret_cast<const uint16_t*>(output.out) + int64_t{share.head} * kLatent;
  const auto at = [&](int second) {
    return __bfloat162float(
        __ushort_as_bfloat16(__ldcg(out + share.Value(step.fp8, share.row, second))));
  };
  return {at(0), at(1)};
}

// The two values of each thread, to all blocks: neighbours among channels as a word.
__device__ void Send(const NarrowStep& step, const bf16_held::Block& block, const Share& share,
                     float2 values) {
  int row = share.row, second = 0;
  if (!step.fp8) {  // rows of a pair exchange what is the other's neighbour
    const bool odd = row % 2 != 0;
    const float other = __shfl_xor_sync(kAllLanes, odd ? values.x : values.y, 1);
    values = odd ? make_float2(other, values.y) : make_float2(values.x, other);
    row -= odd, second = odd;
  }
  const __nv_bfloat162 word = __floats2bfloat162_rn(values.x, values.y);
  uint8_t* const place = block.PlaceOf(0, share.Value(step.fp8, row, second));
#pragma unroll
  for (int rank = 0; rank < kBlocks; ++rank) {
    StoreAtPeer(PeerAddress(place, rank), *reinterpret_cast<const uint32_t*>(&word));
  }
}

__global__ void __launch_bounds__(bf16_held::kThreads)
    MergeValues(const __grid_constant__ NarrowStep step,
                const __grid_constant__ NarrowOutput output, int32_t decode_blocks,
                const __grid_constant__ CUtensorMap weight_map,
                const __grid_constant__ bf16_held::Args a) {
  constexpr int kBatch = 16;
  ClusterArrive();
  const int head = static_cast<int>(blockIdx.x) / kBlocks, rank = blockIdx.x % kBlocks;
  bf16_held::Block block(a, rank, head);
  if (threadIdx.x == 0) block.AskForWeights(weight_map);
  NarrowWalk<false> walk(step, nullptr, decode_blocks);
  const TokenParts all = walk.PartsOf(0);
  const Share share(head, rank);
  const int32_t live = min(*step.live, a.tokens);
  const bool merges = threadIdx.x < kShareThreads && live > 0;
  // As CombineFew: once for nothing where there is room.
#pragma unroll 1
  for (int time = walk.leaves_room() ? 0 : 1; time < 2; ++time) {
    TokenParts parts = all;
    if (time == 0) {
      parts.count = min(parts.count, kBatch);
    } else {
      WaitForPriorKernels();
      ClusterWait();
    }
    if (!merges) continue;
    const float2 values =
        parts.count > 1 ? Merge<kBatch>(output, parts, share) : Result(step, output, share);
    if (time == 1) Send(step, block, share, values);
  }
  AllowNextKernel();  // warps that merge nothing are here right behind the wait
  FenceAsync();       // what is sent here and there is read by wgmma
  ClusterSync();
  FenceAsyncShared();
  block.Multiply(live);
}

}  // namespace

void StartMergeValues(const NarrowStep& step, const NarrowOutput& output, int blocks,
                      const Bf16ProductParams& values, cudaStream_t stream) {
  const bf16_held::Launch launch = bf16_held::LaunchOf(values);
  LaunchClusters(MergeValues,
                 {.clusters = step.heads,
                  .blocks = kBlocks,
                  .threads = bf16_held::kThreads,
                  .shared_bytes = launch.shared_bytes},
                 stream, step, output, blocks, launch.weight_map, launch.args);
}

}  // namespace fathom::mla
