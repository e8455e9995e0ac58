// FP8 block-scaled products of at most eight quantised tokens and one large matrix on Hopper.
//   formula:       as fp8_gemm_kernel.cuh
//   data mapping:  each multiprocessor has a block, and all blocks equally many output channels
//                  (of gate and up both): they are the tensor core's operand of 64 tile rows, one
//                  or several, and x is that of 8. One warp streams both through a ring by TMA, the
//                  first weights before x is there; four multiply run by run
//   bytes, FLOPs:  W once; x once per block, from the L2; 2 FLOPs a weight and token
//   accumulator:   the tensor core's within a run, fp32 registers across runs, in order
//   builds on:     the DeepSeek-V3 report, section 3.3, for the scaling; a warp of its own that
//                  loads, as CUTLASS's warp-specialised kernels for Hopper
//   expected time: N 7168, K 16384, 1 to 8 tokens: 26 us by bytes, 30.5 measured;
//                  docs/design/fp8-gemm.md, "Few tokens"
#include "products/hopper/fp8_few_codes.h"

#include <algorithm>

#include "base/check.h"
#include "cuda/fence.h"
#include "cuda/gpu.h"
#include "cuda/launch_early.cuh"
#include "cuda/tensor_map.h"
#include "cuda/wgmma_fp8.h"
#include "products/hopper/fp8_few_codes_load.cuh"
#include "products/hopper/fp8_gemm_sum.cuh"

namespace fathom {
namespace fp8_few_codes {

// The sums of a thread: of tile rows 64 t + 16 warp + lane / 4, and 8 further, and two tokens each.
template <bool kSilu, int kTiles>
class Multiplier {
 public:
  using S = Shape<kSilu, kTiles>;
  __device__ Multiplier(const Memory<S>& memory, const Args& a, int32_t channel)
      : memory_(memory), a_(a), channel_(channel) {}

  __device__ void Run() {
    const uint32_t stages = Uniform(WgmmaOperand(SharedAddress(memory_.stages)));
    const float* scales[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) scales[t] = ScalesOf(t);
    const int32_t step = Uniform(S::StageBytes(a_) / 16), runs = Uniform(a_.runs);
    Ring ring{a_.stages};
#pragma unroll 1
    for (int32_t run = 0; run < runs; run += S::kDeep, ring.Advance()) {
      const int32_t index = Uniform(ring.index);
      memory_.shared->full[index].Wait(ring.parity);
      Add(stages + index * step, run, scales, index);
    }
  }

  // silu(gate) * up, which different threads have. REQUIRES: kSilu.
  __device__ void Gate() {
    auto* up = reinterpret_cast<float(*)[kTokens]>(memory_.stages);  // all of which are read
    NamedBarrierSync(1, kMultipliers);
    ForEach([&](int part, int32_t c, int32_t token, float& sum) {
      if (part == 1) up[c][token] = sum;
    });
    NamedBarrierSync(1, kMultipliers);
    ForEach([&](int part, int32_t c, int32_t token, float& sum) {
      if (part == 0) sum = fp8_gemm::SiluTimes(sum, up[c][token]);
    });
  }

  __device__ void Store(int32_t tokens) {
    ForEach([&](int part, int32_t c, int32_t token, float& sum) {
      if (part > 0 || token >= tokens || channel_ + c >= a_.part_out) return;
      const int64_t at = token * a_.y_stride + channel_ + c;
      if constexpr (kSilu) {
        static_cast<float*>(a_.y)[at] = sum;
      } else {
        static_cast<__nv_bfloat16*>(a_.y)[at] = __float2bfloat16_rn(sum);
      }
    });
  }

 private:
  // The first of this warp's rows of a tile.
  __device__ static int32_t RowOf(int t) {
    return t * kTileRows + static_cast<int32_t>(threadIdx.x / 32) * kWarpRows;
  }
  // Of a warp's rows: they are of one part and scale.
  __device__ const float* ScalesOf(int t) const {
    const int32_t row = min(RowOf(t), S::Rows(a_) - kWarpRows);
    const int32_t part = row / a_.channels, c = channel_ + row - part * a_.channels;
    return memory_.weight_scales + (part * kScaleTiles + c / kRun - channel_ / kRun) * a_.runs;
  }

  // The runs of a stage, in order.
  __device__ __forceinline__ void Add(uint32_t x, int32_t run, const float* const (&scales)[kTiles],
                                      int32_t stage) {
    const uint32_t weights = x + S::kXOfStage / 16, run_step = S::Rows(a_) * (kRun / 16);
    float product[S::kDeep][kTiles][4];
    WgmmaFence();
#pragma unroll
    for (int j = 0; j < S::kDeep; ++j) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int k = 0; k < kRun / 32; ++k) {
          WgmmaE4M3(product[j][t], weights + j * run_step + t * (kTileBytes / 16) + 2 * k,
                    WgmmaB{WgmmaDescriptor(x + j * (kXBytes / 16) + 2 * k)}, k > 0);
        }
      }
    }
    WgmmaCommit();
    const auto* x_scales = reinterpret_cast<const float2*>(memory_.x_scales) + threadIdx.x % 4;
    float2 x_scale[S::kDeep];
    float scale[S::kDeep][kTiles];
#pragma unroll
    for (int j = 0; j < S::kDeep; ++j) {
      x_scale[j] = x_scales[(run + j) * (kTokens / 2)];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) scale[j][t] = scales[t][run + j];
    }
    WgmmaWait<0>();
#pragma unroll
    for (int j = 0; j < S::kDeep; ++j) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) WgmmaHold(product[j][t]);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) memory_.shared->empty[stage].Arrive();
#pragma unroll
    for (int j = 0; j < S::kDeep; ++j) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float of_x = n % 2 == 0 ? x_scale[j].x : x_scale[j].y;
          sums_[t][n] = fmaf(product[j][t][n], of_x * scale[j][t], sums_[t][n]);
        }
      }
    }
  }

  // f(part, channel of the block, token, sum) of each sum that there is.
  template <class F>
  __device__ __forceinline__ void ForEach(const F& f) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int32_t first = RowOf(t);
      if (first >= S::Rows(a_)) continue;
      const int part = kSilu && first >= a_.channels ? 1 : 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const auto row = first + static_cast<int32_t>(threadIdx.x % 32 / 4) + n / 2 * 8;
        f(part, row - part * a_.channels, static_cast<int32_t>(threadIdx.x % 4 * 2) + n % 2,
          sums_[t][n]);
      }
    }
  }

  const Memory<S>& memory_;
  const Args& a_;
  const int32_t channel_;
  float sums_[kTiles][4] = {};
};

template <bool kSilu, int kTiles>
__global__ void __launch_bounds__(kThreads, 1)
    Kernel(const __grid_constant__ CUtensorMap weight_map,
           const __grid_constant__ CUtensorMap x_map, const __grid_constant__ Args a) {
  using S = Shape<kSilu, kTiles>;
  extern __shared__ __align__(1024) uint8_t dynamic[];
  const Memory<S> memory(dynamic, a);
  Shared& shared = *memory.shared;
  for (int i = static_cast<int>(threadIdx.x); i < kMostStages; i += kThreads) {
    shared.full[i].Init(1);
    shared.empty[i].Init(kMultipliers / 32);
    FenceMbarrierInit();
  }
  __syncthreads();
  const auto channel = static_cast<int32_t>(blockIdx.x) * a.channels;
  if (threadIdx.x >= kMultipliers) {
    Loader<S>(memory, a, &weight_map, &x_map, channel).Run();
    return;
  }
  LoadWeightScales(memory, a, channel);
  WaitForPriorKernels();
  AllowNextKernel();  // after the wait: what comes next may read early what others wrote (ops/op.h)
  LoadXScales(memory, a);
  CommitCopies();
  const int32_t tokens = min(*a.live, a.tokens);
  WaitForCopies<0>();
  NamedBarrierSync(1, kMultipliers);
  Multiplier<kSilu, kTiles> multiplier(memory, a, channel);
  multiplier.Run();
  if constexpr (kSilu) multiplier.Gate();
  multiplier.Store(tokens);
}

template <bool kSilu, int kTiles>
void Launch(const Fp8FewCodesParams& p, Args args, cudaStream_t stream) {
  using S = Shape<kSilu, kTiles>;
  const Fp8Weights& w = p.w;
  const auto channels = static_cast<uint64_t>(w.in);
  const CUtensorMap weight_map =
      MakeTensorMap({.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                     .data = w.codes,
                     .sizes = {channels, static_cast<uint64_t>(w.parts * w.part_out)},
                     .strides = {channels},
                     .box = {kRun, static_cast<uint32_t>(args.channels)},
                     .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
  const CUtensorMap x_map =
      MakeTensorMap({.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                     .data = p.x.codes,
                     .sizes = {kRun, static_cast<uint64_t>(p.x.capacity), channels / kRun},
                     .strides = {channels, kRun},
                     .box = {kRun, kTokens, S::kDeep}});
  const auto left = static_cast<int64_t>(kSharedBytes - S::SharedBytes(args, 0));
  args.stages = static_cast<int32_t>(
      std::min<int64_t>({args.runs / S::kDeep, kMostStages, left / S::StageBytes(args)}));
  CHECK(args.stages >= 1, "fp8_few_codes: no room for {} channels", w.in);
  const auto kernel = Kernel<kSilu, kTiles>;
  Gpu::OfThread().AllowSharedMemory(kernel, kSharedBytes);
  const auto blocks = static_cast<unsigned>(CeilDivide(w.part_out, args.channels));
  Gpu::OfThread().Check(LaunchEarly(kernel, dim3(blocks), kThreads,
                                    S::SharedBytes(args, args.stages), stream, weight_map, x_map,
                                    args));
}

template <bool kSilu>
void Launch(const Fp8FewCodesParams& p, const Args& args, cudaStream_t stream) {
  const int64_t tiles = CeilDivide((kSilu ? 2 : 1) * int64_t{args.channels}, kTileRows);
  if (tiles <= 1) return Launch<kSilu, 1>(p, args, stream);
  if (tiles <= 3) return Launch<kSilu, 3>(p, args, stream);
  return Launch<kSilu, 5>(p, args, stream);
}

// Channels of a block and part: as many as give every multiprocessor its share, but a tile at
// least; at most what five tiles and a TMA box hold.
int32_t ChannelsOf(const Fp8Weights& w) {
  const int64_t share =
      CeilDivide(CeilDivide(w.part_out, Multiprocessors()), kWarpRows) * kWarpRows;
  const int64_t least = kTileRows / w.parts, most = w.parts == 2 ? 160 : 256;
  return static_cast<int32_t>(std::clamp(share, least, most));
}

}  // namespace fp8_few_codes

bool Fp8FewCodesFit(const Fp8Weights& w) {
  using namespace fp8_few_codes;
  return w.count == 1 && w.parts <= 2 && Fp8ChainsOf(w) == 1 && w.in % (kRun * kMostDeep) == 0 &&
         w.in <= kRun * kMostRuns && w.part_out % 16 == 0;
}

bool Fp8FewCodesPays(const Fp8Weights& w, int64_t tokens, bool quantized) {
  // Measured on an H200 (docs/design/fp8-gemm.md): with few runs, or gate and up of one token, the
  // others are as fast.
  constexpr int64_t kLeastIn = 2048, kLargeBytes = 32 << 20;
  const bool better = w.parts == 2 ? tokens > 1 : w.in >= kLeastIn;
  return Fp8FewCodesFit(w) && tokens <= kFp8FewCodesTokens && better &&
         (quantized || w.parts * w.part_out * w.in >= kLargeBytes);
}

void LaunchFp8FewCodes(const Fp8FewCodesParams& p, cudaStream_t stream) {
  using namespace fp8_few_codes;
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  const Fp8Weights& w = p.w;
  CHECK(p.x.capacity <= kFp8FewCodesTokens && p.x.channels == w.in,
        "fp8_few_codes: {} tokens of {} channels, W {}", p.x.capacity, p.x.channels, w.in);
  CHECK(Fp8FewCodesFit(w), "fp8_few_codes: {} parts of {} to {} channels", w.parts, w.in,
        w.part_out);
  CHECK(p.x.scale_pitch % 4 == 0 && p.x.scale_pitch >= kTokens && aligned(p.x.scales) &&
            aligned(p.x.codes) && aligned(w.scales) && aligned(w.codes),
        "fp8_few_codes: unaligned input");
  if (p.x.capacity == 0) return;
  const Args args = {.x_scales = p.x.scales,
                     .weight_scales = w.scales,
                     .live = p.live,
                     .y = p.y,
                     .y_stride = p.y_stride,
                     .x_scale_pitch = p.x.scale_pitch,
                     .tokens = static_cast<int32_t>(p.x.capacity),
                     .runs = static_cast<int32_t>(w.in / kRun),
                     .part_out = static_cast<int32_t>(w.part_out),
                     .scale_groups = static_cast<int32_t>(CeilDivide(w.part_out, kRun)),
                     .channels = ChannelsOf(w),
                     .stages = 0};
  return w.parts == 2 ? Launch<true>(p, args, stream) : Launch<false>(p, args, stream);
}

}  // namespace fathom
