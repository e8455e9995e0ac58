// Chooses and launches the tiles of the BF16 product of many tokens.
#include <algorithm>

#include "cuda/launch_clusters.cuh"
#include "cuda/tensor_map.h"
#include "products/hopper/bf16_gemm_kernel.cuh"

namespace fathom {
namespace bf16_gemm {
namespace {

int64_t Channels(const Bf16ProductParams& p) {
  return p.silu ? p.out / 2 : p.out;
}

template <class T>
void Launch(const Bf16ProductParams& p, cudaStream_t stream) {
  // No more tokens than there are, in whole swizzle atoms: reading out of bounds takes time.
  const int64_t x_box_tokens = std::min<int64_t>(
      T::kM / T::kPairChannels, CeilDivide(CeilDivide(p.tokens, T::kPairChannels), 8) * 8);
  // Experts share the tokens about evenly.
  const int64_t tokens = p.counts == nullptr ? p.tokens : CeilDivide(p.tokens, p.count);
  const bool read_once = tokens <= T::kClusterM;
  const int64_t across = CeilDivide(Channels(p), T::kClusterOut);
  const Args args = {.live = p.live,
                     .counts = p.counts,
                     .begins = p.begins,
                     .out = p.y,
                     .out_stride = p.y_stride,
                     .out_head_stride = p.counts == nullptr ? p.y_head_stride : 0,
                     .groups = static_cast<int32_t>(p.count),
                     .capacity = static_cast<int32_t>(p.tokens),
                     .channels = static_cast<int32_t>(Channels(p)),
                     .chunks = static_cast<int32_t>(CeilDivide(p.in, kBf16Chunk)),
                     .x_box_tokens = static_cast<int32_t>(x_box_tokens),
                     .across = static_cast<int32_t>(across),
                     .read_once = read_once,
                     .counts_are_there = p.counts == nullptr || p.counts_early,
                     .f32 = p.f32};
  const bool heads = p.counts == nullptr && p.count > 1;
  const auto u64 = [](int64_t x) { return static_cast<uint64_t>(x); };
  // A chunk is all that is read of a token at a time: more of it is not wanted in the L2 yet.
  const CUtensorMap x_map = MakeTensorMap(
      {.data = p.x,
       .sizes = {u64(p.in), u64(p.tokens), u64(heads ? p.count : 1)},
       .strides = {u64(p.x_stride) * 2, u64(heads ? p.x_head_stride : p.x_stride) * 2},
       .box = {kBf16Chunk, static_cast<uint32_t>(x_box_tokens), 1},
       .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
  const CUtensorMap weight_map = MakeTensorMap({.data = p.w,
                                                .sizes = {u64(p.in), u64(p.count * p.out)},
                                                .strides = {u64(p.in) * 2},
                                                .box = {kBf16Chunk, T::kBoxChannels},
                                                .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
  Gpu::OfThread().AllowSharedMemory(Kernel<T>, sizeof(Shared<T>));
  // Capacities decide the grid: the most tiles that the live tokens could make.
  int64_t down = CeilDivide(p.tokens, T::kClusterM);
  down = p.counts == nullptr ? down * p.count : down + std::min(p.count, p.tokens);
  const int64_t clusters = std::clamp<int64_t>(across * down, 1, Multiprocessors() / T::kBlocks);
  LaunchClusters(Kernel<T>,
                 {.clusters = clusters,
                  .blocks = T::kBlocks,
                  .threads = T::kThreads,
                  .shared_bytes = sizeof(Shared<T>)},
                 stream, Maps{x_map, weight_map}, args);
}

// By rounds of tiles and what a round of each takes, measured on an H200
// (docs/design/bf16-gemm.md).
Bf16Tile ChooseTile(const Bf16ProductParams& p) {
  if (p.counts != nullptr) {  // experts' tokens are uneven
    return p.tokens / p.count <= 32 ? Bf16Tile::k64x128 : Bf16Tile::k128x256;
  }
  struct Cost {
    Bf16Tile tile;
    int64_t tokens, channels;  // of a cluster
    double round;              // microseconds of 2048 channels
  };
  constexpr Cost kCosts[] = {
      {Bf16Tile::k64x64, 64, 128, 5.4},    {Bf16Tile::k64x128, 64, 256, 10},
      {Bf16Tile::k128x64, 128, 128, 9},    {Bf16Tile::k128x128, 128, 256, 13.7},
      {Bf16Tile::k128x144, 128, 288, 18},  {Bf16Tile::k128x256, 128, 512, 24},
      {Bf16Tile::k256x256, 256, 256, 23.6}};
  Bf16Tile best = Bf16Tile::kAuto;
  double least = 0;
  for (const Cost& cost : kCosts) {
    // Weights that are read once come as fast in smaller tiles, whose rounds are more even.
    if (cost.round > 14 && p.tokens <= 128) continue;
    const int64_t pairs =
        p.count * CeilDivide(p.tokens, cost.tokens) * CeilDivide(p.out, cost.channels);
    const double time = cost.round * static_cast<double>(CeilDivide(2 * pairs, Multiprocessors()));
    if (best == Bf16Tile::kAuto || time < least) best = cost.tile, least = time;
  }
  return best;
}

template <int kDown, int kAcross, int kMmaN, int kStages, int kPairTokens = 1,
          int kPairChannels = 2>
void LaunchTile(const Bf16ProductParams& p, cudaStream_t stream) {
  if (p.silu) {
    return Launch<Tile<kDown, kAcross, kMmaN, kStages, true, kPairTokens, kPairChannels>>(p,
                                                                                          stream);
  }
  Launch<Tile<kDown, kAcross, kMmaN, kStages, false, kPairTokens, kPairChannels>>(p, stream);
}

}  // namespace
}  // namespace bf16_gemm

bool Bf16GemmFits(const Bf16ProductParams& p) {
  const int64_t channels = bf16_gemm::Channels(p);
  return Bf16ProductFits(p) && p.token_of == nullptr && p.count <= kMaxGroups &&
         channels % 8 == 0 && p.y_stride % 8 == 0 && p.y_head_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(p.y) % 16 == 0 && !(p.silu && p.f32);
}

void LaunchBf16Gemm(const Bf16ProductParams& p, cudaStream_t stream, Bf16Tile tile) {
  using namespace bf16_gemm;
  if (p.tokens == 0) return;
  if (tile == Bf16Tile::kAuto) tile = ChooseTile(p);
  switch (tile) {
    case Bf16Tile::kAuto: break;
    case Bf16Tile::k64x64: return LaunchTile<1, 1, 64, 12>(p, stream);
    case Bf16Tile::k64x128: return LaunchTile<1, 2, 64, 8>(p, stream);
    case Bf16Tile::k128x64: return LaunchTile<2, 1, 64, 8>(p, stream);
    case Bf16Tile::k128x128: return LaunchTile<2, 1, 128, 6>(p, stream);
    case Bf16Tile::k128x144:
      if (p.silu) return LaunchTile<2, 1, 128, 6>(p, stream);
      return Launch<Tile<2, 1, 144, 6, false>>(p, stream);
    case Bf16Tile::k128x256: return LaunchTile<2, 1, 256, 4>(p, stream);
    case Bf16Tile::k256x256: return LaunchTile<2, 1, 256, 4, 2, 1>(p, stream);
  }
}

}  // namespace fathom
