// MLA decode of few items: mla_decode_kernel.cu's sums, to the bit, by clusters of blocks that
// share an item's tiles to score and its columns to sum up, so that one token's context keeps many
// multiprocessors busy without being cut into parts that must be merged. Bytes: a block loads its
// share of an item's tiles, and its columns of all of them: 1152 a position and item from memory,
// 1152 + 1024 through the L2. Operations, accumulators and rounding: mla_decode_kernel.cu. Builds
// on thread block clusters (PTX ISA 9.0) and on FlashMLA's published notes, whose two warpgroups
// share an item in the same way inside a block. Measured on an H200: 128 heads, 1 row of 4096: 26
// us; see docs/design/mla-decode.md.
#include "cuda/gpu.h"
#include "cuda/launch_clusters.cuh"
#include "ops/attend_absorbed/mla_decode_columns.cuh"
#include "ops/attend_absorbed/mla_decode_columns_widen.cuh"

namespace fathom::mla {
namespace {

// Of an FP8 cache two warpgroups more widen codes.
template <bool kFp8>
constexpr int kColumnsThreads = kFp8 ? kThreads + 32 * kColumnsWidenWarps : kThreads;

template <int kBlocks, bool kFp8>
__global__ void __launch_bounds__(kColumnsThreads<kFp8>, 1)
    ColumnsKernel(const __grid_constant__ Maps maps, const __grid_constant__ Step step,
                  const __grid_constant__ Output output, float scale_log2) {
  using S = ColumnsShared<kBlocks>;
  extern __shared__ __align__(1024) uint8_t memory[];
  S& s = *reinterpret_cast<S*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      s.item_full[i].Init(1);
      s.item_empty[i].Init(kItemReaders<kFp8>);
      s.keys_full[i].Init(kFp8 ? 1 + kColumnsWidenWarps : 1);
      s.key_codes[i].Init(1);
      s.keys_empty[i].Init(4);
      s.weights_full[i].Init(4);
      s.weights_empty[i].Init(1);
    }
    for (int i = 0; i < 4; ++i) s.best_full[i].Init(1);
    for (int i = 0; i < kBlocks; ++i) {
      s.slot_full[i].Init(kValueArrivals<kFp8, kBlocks> + 1);  // and by the warp of weights
      s.slot_codes[i].Init(1);
      s.slot_empty[i].Init(4);
      for (int parity = 0; parity < 2; ++parity) s.weights_there[parity][i].Init(1);
    }
    for (int parity = 0; parity < 2; ++parity) s.summed[parity].Init(4 * kBlocks);
    FenceMbarrierInit();
  }
  ClusterSync();
  if (threadIdx.x / 32 != 8) WaitForPriorKernels();  // who finds items looks at the step before
  const int group = static_cast<int>(threadIdx.x / 128);
  if (group >= 2) {
    LowerRegisters<kFp8 ? 48 : 56>();
    if (threadIdx.x / 32 == 8) ProduceKeys<kFp8>(s, maps, step);
    if (threadIdx.x / 32 == 9) ProduceValues<kFp8>(s, maps, step);
    if (threadIdx.x / 32 == 10) SendWeights(s, output);
    if (threadIdx.x / 32 == 11) ProduceWeights(s, output);
    if constexpr (kFp8) {
      if (group > 2) WidenColumns(s, static_cast<int>(threadIdx.x / 32 - 12));
    }
  } else if (group == 0) {
    RaiseRegisters<kFp8 ? 208 : 224>();
    Scorer<kBlocks>(s, step, scale_log2).Run();
  } else {
    RaiseRegisters<kFp8 ? 128 : 224>();
    Summer<kBlocks, kFp8>(s, step, output).Run();
  }
  __syncwarp();
  ClusterSync();  // nobody ends while others write to it
}

template <int kBlocks, bool kFp8>
void Start(const Maps& maps, const Step& step, const Output& output, float scale_log2,
           int64_t clusters, cudaStream_t stream) {
  constexpr int kBytes = sizeof(ColumnsShared<kBlocks>);
  static_assert(kBytes <= 227 * 1024);
  Gpu::OfThread().AllowSharedMemory(ColumnsKernel<kBlocks, kFp8>, kBytes);
  LaunchClusters(ColumnsKernel<kBlocks, kFp8>,
                 {.clusters = clusters,
                  .blocks = kBlocks,
                  .threads = kColumnsThreads<kFp8>,
                  .shared_bytes = kBytes},
                 stream, maps, step, output, scale_log2);
}

}  // namespace

void StartColumns(const Maps& maps, const Step& step, const Output& output, float scale_log2,
                  const ColumnsGrid& grid, cudaStream_t stream) {
  const auto start = grid.cluster == 8 ? (step.fp8 ? Start<8, true> : Start<8, false>)
                                       : (step.fp8 ? Start<4, true> : Start<4, false>);
  start(maps, step, output, scale_log2, grid.clusters, stream);
}

}  // namespace fathom::mla
