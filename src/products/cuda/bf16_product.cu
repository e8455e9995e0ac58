// BF16 products on CUDA by mma.sync, with weights as the operand of 16 tile rows.
//   formula:       y[t] = x[t] W^T; or silu(gate) * up of the two halves of W
//   data mapping:  a block per tile of kOut outputs and kTokens tokens, or pairs that it finds
//                  among few tokens' expert ids. Channels are cut into chunks of 64, which its four
//                  warps take in turn; each streams its own chunks through shared memory (cp.async)
//                  into a whole tile of sums, which are then added
//   bytes, FLOPs:  weights once per kTokens tokens, activations once per kOut outputs; 2 FLOP a
//                  weight and token
//   accumulator:   fp32 in the tensor core per warp, in ascending order of its chunks; then the
//                  four warps' sums in order: the same for every tile
//   builds on:     stages by cp.async, and channels cut between the warps of a block: CUTLASS's
//                  multistage and sliced-K products for Ampere
//   expected time: [2048, 2048], 1 token: 8 MB at 70 % of the bandwidth, 2.5 us; an H200 takes 5
#include "cuda/kernels.cuh"
#include "cuda/l2_policy.h"
#include "cuda/mma.cuh"
#include "products/cuda/bf16_product.h"
#include "products/cuda/few_pairs.cuh"
#include "products/cuda/silu_mul.cuh"

namespace fathom {
namespace kernels {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kChunk = kBf16Chunk;  // channels that a warp takes at a time

// Where a block works: matrix, first position and end of its tokens.
struct Place {
  int64_t matrix, begin, end;
};

// The block's tile among all experts' tiles of kTokens positions; end <= begin: none.
template <int kTokens>
__device__ Place FindPlace(const Bf16ProductParams& p, int64_t tile) {
  if (p.counts == nullptr) {
    // Tokens of the first tile do not wait for the live count: those beyond are not stored.
    const int64_t end = tile == 0 ? p.tokens : min(static_cast<int64_t>(*p.live), p.tokens);
    return {blockIdx.z, tile * kTokens, end};
  }
  // Every warp finds it for itself: 32 experts at a time.
  const int lane = threadIdx.x % kWarp;
  int before = 0;
  for (int base = 0; base < p.count; base += kWarp) {
    const int expert = base + lane;
    const int count = expert < p.count ? p.counts[expert] : 0;
    const int tiles = (count + kTokens - 1) / kTokens;
    int sum = tiles;  // inclusive prefix sum
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int other = __shfl_up_sync(kAllLanes, sum, offset);
      if (lane >= offset) sum += other;
    }
    const bool mine = tile >= before + sum - tiles && tile < before + sum;
    const unsigned found = __ballot_sync(kAllLanes, mine);
    if (found != 0) {
      const int owner = __ffs(found) - 1;
      const int first = __shfl_sync(kAllLanes, before + sum - tiles, owner);
      const int64_t begin = p.begins[base + owner];
      return {base + owner, begin + (tile - first) * kTokens, begin + p.counts[base + owner]};
    }
    before += __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
  return {0, 0, 0};
}

template <int kOut, int kTokens, int kStages, int kStageChannels>
struct Tile {
  static constexpr int kVectors = kStageChannels / 8;  // of 16 bytes, in a tile row
  static constexpr int kStageBytes = (kOut + kTokens) * kStageChannels * 2;
  static constexpr int kPipelineBytes = kWarps * kStages * kStageBytes;
  static constexpr int kSumStride = kOut + 1;
  static constexpr int kSumBytes = kWarps * kTokens * kSumStride * 4;
  static constexpr int kSharedBytes = kPipelineBytes > kSumBytes ? kPipelineBytes : kSumBytes;

  // Byte offset of vector v of a tile row, so that eight tile rows' vectors lie in different banks.
  __device__ static uint32_t Offset(int tile_row, int v) {
    const int turn = kVectors == 8 ? tile_row & 7 : (tile_row >> 1) & 3;
    return static_cast<uint32_t>(tile_row * kStageChannels * 2 + ((v ^ turn) * 16));
  }
};

// A warp's stream of stages: what it reads.
template <class T, int kOut, int kTokens, int kStageChannels>
struct Source {
  const Bf16ProductParams& p;
  const BF16 *w, *x;
  Place place;
  int64_t out_begin;
  uint64_t policy;       // of the weights, of the smallest tiles
  const int32_t* pairs;  // of the block, or null

  // The output behind tile row r; -1: none.
  __device__ int64_t OutputOf(int r) const {
    if (!p.silu) return out_begin + r < p.out ? out_begin + r : -1;
    const int64_t i = out_begin + r % (kOut / 2), inter = p.out / 2;
    return i < inter ? (r < kOut / 2 ? i : inter + i) : -1;
  }
  __device__ void LoadWeights(uint32_t to, int64_t channel) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = lane; i < kOut * T::kVectors; i += kWarp) {
      const int r = i / T::kVectors, v = i % T::kVectors;
      const int64_t output = OutputOf(r), k = channel + v * 8;
      const bool valid = output >= 0 && k < p.in;
      const BF16* from = valid ? w + output * p.in + k : w;
      if constexpr (kTokens == 8) {  // hardly any other tile reads them
        CopyAsync(to + T::Offset(r, v), from, valid, policy);
      } else {
        CopyAsync(to + T::Offset(r, v), from, valid);
      }
    }
  }
  __device__ void LoadTokens(uint32_t to, int64_t channel) const {
    const int lane = threadIdx.x % kWarp;
    const uint32_t x_to = to + kOut * kStageChannels * 2;
#pragma unroll
    for (int i = lane; i < kTokens * T::kVectors; i += kWarp) {
      const int r = i / T::kVectors, v = i % T::kVectors;
      const int64_t position = place.begin + r, k = channel + v * 8;
      const bool valid = position < place.end && k < p.in;
      const BF16* from = x;
      if (valid) {
        int64_t token = p.token_of == nullptr ? position : p.token_of[position];
        if (pairs != nullptr) token = p.x_of_pairs ? pairs[r] : pairs[r] / p.topk;
        from = x + token * p.x_stride + k;
      }
      CopyAsync(x_to + T::Offset(r, v), from, valid);
    }
  }
};

// Adds one stage's products to the warp's sums.
template <class T, int kOut, int kTokens, int kStageChannels>
__device__ void MultiplyStage(uint32_t stage, float (&sums)[kOut / 16][kTokens / 8][4]) {
  const int lane = threadIdx.x % kWarp;
  const uint32_t x_stage = stage + kOut * kStageChannels * 2;
#pragma unroll
  for (int pair = 0; pair < kStageChannels / 32; ++pair) {  // two steps of 16 channels
    uint32_t a[2][kOut / 16][4];
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int m = 0; m < kOut / 16; ++m) {
        const int tile_row = m * 16 + lane % 16, v = pair * 4 + step * 2 + lane / 16;
        LoadMatrices(a[step][m], stage + T::Offset(tile_row, v));
      }
    }
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
      uint32_t b[4];
      LoadMatrices(b, x_stage + T::Offset(n * 8 + lane % 8, pair * 4 + lane / 8));
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int m = 0; m < kOut / 16; ++m) {
          Multiply(sums[m][n], a[step][m], b[2 * step], b[2 * step + 1]);
        }
      }
    }
  }
}

template <int kOut, int kTokens>
__device__ void StoreSums(const Bf16ProductParams& p, const Place& place, const int32_t* pairs,
                          int64_t out_begin, const float* sums, int stride) {
  const auto total = [&](int r, int n) {
    float sum = sums[r * stride + n];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) sum += sums[(warp * kTokens + r) * stride + n];
    return sum;
  };
  constexpr int kWide = kOut;
  const int width = p.silu ? kWide / 2 : kWide;
  const int64_t limit = p.silu ? p.out / 2 : p.out;
  for (int i = threadIdx.x; i < kTokens * width; i += kThreads) {
    const int r = i / width, n = i % width;
    if (place.begin + r >= place.end || out_begin + n >= limit) continue;
    const float y = p.silu ? SiluMul(total(r, n), total(r, n + kOut / 2)) : total(r, n);
    const int64_t head = p.counts == nullptr && pairs == nullptr ? place.matrix : 0;
    const int64_t place_in_y = pairs == nullptr ? place.begin + r : pairs[r];
    const int64_t at = place_in_y * p.y_stride + head * p.y_head_stride + out_begin + n;
    if (p.f32) {
      static_cast<float*>(p.y)[at] = y;
    } else {
      Store(static_cast<BF16*>(p.y) + at, y);
    }
  }
}

template <int kOut, int kTokens, int kStages, int kStageChannels>
__global__ void __launch_bounds__(kThreads)
    Bf16Product(const __grid_constant__ Bf16ProductParams p) {
  using T = Tile<kOut, kTokens, kStages, kStageChannels>;
  constexpr int kStagesOfChunk = kChunk / kStageChannels;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ FewPairs few;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t out_begin = int64_t{blockIdx.x} * (p.silu ? kOut / 2 : kOut);
  const uint32_t pipeline =
      SharedAddressOf(shared) + static_cast<uint32_t>(warp * kStages * T::kStageBytes);
  const int chunks = static_cast<int>((p.in + kChunk - 1) / kChunk);
  const int mine = (chunks - warp + kWarps - 1) / kWarps;  // chunks warp, warp + 4, ...
  const int stages = mine * kStagesOfChunk;
  const auto channel_of = [&](int stage) {
    return (int64_t{stage / kStagesOfChunk} * kWarps + warp) * kChunk +
           stage % kStagesOfChunk * kStageChannels;
  };
  const bool dense = p.counts == nullptr && p.ids == nullptr;
  Source<T, kOut, kTokens, kStageChannels> source = {
      .p = p,
      .w = p.w,
      .x = p.x,
      .place = {},
      .out_begin = out_begin,
      .policy = kTokens == 8 ? CpAsyncEvictFirst() : 0,
      .pairs = p.ids == nullptr ? nullptr : few.pair};
  const auto load_first = [&](auto load) {
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
      if (s < stages) load(pipeline + s * T::kStageBytes, channel_of(s));
    }
  };
  const auto load_weights = [&](uint32_t to, int64_t channel) { source.LoadWeights(to, channel); };

  // Which weights a dense product needs is known before the kernels before it have ended.
  if (dense) {
    source.w += blockIdx.z * p.out * p.in;
    load_first(load_weights);
  }
  WaitForPriorKernels();
  AllowNextKernel();
  Place place;
  if (p.ids == nullptr) {
    place = FindPlace<kTokens>(p, blockIdx.y);
  } else {
    if (warp == 0) {
      FindPairs(few, {p.ids, p.live, static_cast<int32_t>(p.tokens), static_cast<int32_t>(p.topk)},
                static_cast<int32_t>(blockIdx.y));
    }
    __syncthreads();
    place = {few.matrix, 0, few.count};
  }
  const int32_t live = dense ? *p.live : 0;
  if (place.begin >= place.end) {
    return WaitForCopies<0>();
  }
  source.place = place;
  if (dense) {
    source.x += place.matrix * p.x_head_stride;
  } else {
    source.w += place.matrix * p.out * p.in;
    load_first(load_weights);
  }
  float sums[kOut / 16][kTokens / 8][4] = {};
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < stages) source.LoadTokens(pipeline + s * T::kStageBytes, channel_of(s));
    CommitCopies();  // the first of them has all the weights
  }
  for (int s = 0; s < stages; ++s) {
    WaitForCopies<kStages - 2>();
    __syncwarp();
    const int next = s + kStages - 1;
    if (next < stages) {
      const uint32_t to = pipeline + next % kStages * T::kStageBytes;
      source.LoadWeights(to, channel_of(next));
      source.LoadTokens(to, channel_of(next));
    }
    CommitCopies();
    MultiplyStage<T, kOut, kTokens, kStageChannels>(pipeline + s % kStages * T::kStageBytes, sums);
  }
  WaitForCopies<0>();
  __syncthreads();  // the pipeline's memory takes the sums

  float* all = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int m = 0; m < kOut / 16; ++m) {
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int out = m * 16 + lane / 4 + i / 2 * 8, token = n * 8 + lane % 4 * 2 + i % 2;
        all[(warp * kTokens + token) * T::kSumStride + out] = sums[m][n][i];
      }
    }
  }
  __syncthreads();
  if (dense) place.end = min(place.end, static_cast<int64_t>(live));
  StoreSums<kOut, kTokens>(p, place, source.pairs, out_begin, all, T::kSumStride);
}

template <int kOut, int kTokens, int kStages, int kStageChannels>
void Launch(const Bf16ProductParams& p, cudaStream_t stream) {
  using T = Tile<kOut, kTokens, kStages, kStageChannels>;
  const auto kernel = Bf16Product<kOut, kTokens, kStages, kStageChannels>;
  Gpu::OfThread().AllowSharedMemory(kernel, T::kSharedBytes);
  int64_t tiles = p.ids == nullptr ? (p.tokens + kTokens - 1) / kTokens : p.tokens * p.topk;
  if (p.counts != nullptr) tiles = std::min(p.tokens, tiles + p.count);
  const dim3 grid(Blocks(p.silu ? p.out / 2 : p.out, p.silu ? kOut / 2 : kOut),
                  static_cast<unsigned>(tiles),
                  p.counts == nullptr && p.ids == nullptr ? static_cast<unsigned>(p.count) : 1);
  LaunchOverlapped(kernel, grid, kThreads, T::kSharedBytes, stream, p);
}

}  // namespace kernels

bool Bf16ProductFits(const Bf16ProductParams& p) {
  const auto aligned = [](const void* address) {
    return reinterpret_cast<uintptr_t>(address) % 16 == 0;
  };
  return p.in % 8 == 0 && p.x_stride % 8 == 0 && p.x_head_stride % 8 == 0 && aligned(p.x) &&
         aligned(p.w);
}

void LaunchBf16Product(const Bf16ProductParams& p, cudaStream_t stream) {
  using namespace kernels;
  if (p.tokens == 0) return;
  // Tokens that share a matrix; experts share the pairs about evenly.
  const int64_t sharing = p.counts == nullptr ? p.tokens : (p.tokens + p.count - 1) / p.count;
  const int64_t matrices = p.counts == nullptr ? p.count : std::min(p.tokens, p.count);
  // Wide tiles read x less often, if there are enough of them for the whole GPU.
  const bool wide = (p.out + 63) / 64 * ((sharing + 63) / 64) * matrices >= 400;
  if (sharing <= 8) {
    // Absorbed W_UK: a chunk for each warp, and all blocks at a time.
    if (p.in <= kWarps * kChunk) return Launch<16, 8, 2, 64>(p, stream);
    // Experts' weights in longer pieces; whole lines of the L2 in any case.
    if (wide || p.ids != nullptr) return Launch<32, 8, 3, 64>(p, stream);
    return Launch<16, 8, 5, 64>(p, stream);
  }
  if (sharing <= 16)
    return wide ? Launch<64, 16, 4, 32>(p, stream) : Launch<16, 16, 5, 64>(p, stream);
  if (sharing <= 32)
    return wide ? Launch<64, 32, 3, 32>(p, stream) : Launch<16, 32, 4, 64>(p, stream);
  return wide ? Launch<64, 64, 3, 32>(p, stream) : Launch<16, 64, 4, 32>(p, stream);
}

}  // namespace fathom
