// MLA decode: s = scale (q_latent . latent + q_rope . rope), out = softmax(s) latent, per token and
// head. 64 (token, head) pairs of a row are M of wgmma; two warpgroups share the 64 x 512 sums.
// Bytes: 1152 a cached position and item (FP8: 644); operations: 2176 a position and pair (M padded
// to 64). fp32 accumulators; weights are rounded to BF16; parts of a context lie in FP16, scaled,
// and are merged in order, in fp32. Builds on FlashMLA's published notes (two warpgroups share the
// sums and exchange weights; codes of an FP8 cache are widened in shared memory) and on flash
// decoding (parts of a context, merged). Expected on an H200: 128 heads, 128 rows of 8192: 292
// GFLOP, 440 us; see docs/design/mla-decode.md.
#include "cuda/gpu.h"
#include "cuda/launch_early.cuh"
#include "ops/attend_absorbed/mla_decode_finish.cuh"

namespace fathom::mla {
namespace {

constexpr int kPairVectors = kLatent / 8;
constexpr int kCombineHeads = 4;
constexpr int kCombineThreads = kCombineHeads * kPairVectors;

template <bool kFp8>
__global__ void __launch_bounds__(kFp8 ? kFp8Threads : kThreads, 1)
    DecodeKernel(const __grid_constant__ Maps maps, const __grid_constant__ Step step,
                 const __grid_constant__ Output output, float scale_log2) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    s.query_full.Init(1);
    s.query_empty.Init(kFp8 ? 8 + kWidenWarps : 8);
    for (int buffer = 0; buffer < 2; ++buffer) {
      for (int half = 0; half < 2; ++half) {
        s.full[buffer][half].Init(kFp8 ? 1 + kWidenWarps : 1);
        s.widen.raw[buffer][half].Init(1);
        s.empty[buffer][half].Init(4);
      }
    }
    FenceMbarrierInit();
  }
  __syncthreads();
  if (threadIdx.x / 32 != 8) WaitForPriorKernels();  // the producer looks at the step before
  const int group = static_cast<int>(threadIdx.x / 128);
  if (group >= 2) {
    LowerRegisters<kFp8 ? 48 : 56>();
    if (threadIdx.x / 32 == 8) {
      Produce<kFp8>(s, maps, step);
    } else if constexpr (kFp8) {
      WidenItems(s);
    }
  } else if (group == 0) {
    RaiseRegisters<kFp8 ? 208 : 224>();
    Consumer<0, kFp8>(s, step, output, scale_log2).Run();
  } else {
    RaiseRegisters<kFp8 ? 208 : 224>();
    Consumer<1, kFp8>(s, step, output, scale_log2).Run();
  }
}

// out = sum of exp2(max_i - max) partial_i / sum of exp2(max_i - max) sum_i, over parts i in order.
// A block per token and 4 heads, a thread per 8 columns. kBatch parts are on their way together.
template <int kBatch>
__global__ void __launch_bounds__(kCombineThreads)
    CombineKernel(const __grid_constant__ Step step, const __grid_constant__ Output output) {
  WaitForPriorKernels();
  AllowNextKernel();
  const int32_t token = static_cast<int32_t>(blockIdx.x);
  const int32_t head =
      static_cast<int32_t>(blockIdx.y * kCombineHeads + threadIdx.x / kPairVectors);
  if (head >= step.heads) return;
  const int64_t first = int64_t{token} * step.max_splits * step.heads + head;
  const int vector = static_cast<int>(threadIdx.x) % kPairVectors;
  const float2* states = output.state + first * kStates + vector / (kStateColumns / 8);
  const uint4* partial =
      reinterpret_cast<const uint4*>(output.partial) + first * kPairVectors + vector;
  // The first parts, of two at least, are asked for with what tells whether they are needed.
  float2 first_states[2];
  uint4 first_parts[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    first_states[i] = states[int64_t{i} * step.heads * kStates];
    first_parts[i] = partial[int64_t{i} * step.heads * kPairVectors];
  }
  const int32_t position = step.positions[token];
  const int32_t splits = position / step.PartTokens(position) + 1;
  if (token >= step.Live() || splits == 1) return;
  float max = fmaxf(first_states[0].x, first_states[1].x);
  constexpr int kSharers = kStateColumns / 8;  // threads that share states
#pragma unroll 8
  for (int32_t i = 2 + vector % kSharers; i < splits; i += kSharers) {
    max = fmaxf(max, states[int64_t{i} * step.heads * kStates].x);
  }
#pragma unroll
  for (int distance = 1; distance < kSharers; distance *= 2) {
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, distance));
  }
  const float base = max == -INFINITY ? 0 : max;
  float2 out[4] = {};
  float sum = 0;
  const auto add = [&](const float2& state, const uint4& part) {
    const float weight = Exp2(state.x - base);
    const __half2* values = reinterpret_cast<const __half2*>(&part);
    sum = fmaf(weight, state.y, sum);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 value = __half22float2(values[j]);
      out[j].x = fmaf(weight, value.x, out[j].x);
      out[j].y = fmaf(weight, value.y, out[j].y);
    }
  };
#pragma unroll
  for (int i = 0; i < 2; ++i) add(first_states[i], first_parts[i]);
  for (int32_t begin = 2; begin < splits; begin += kBatch) {
    float2 batch_states[kBatch];
    uint4 batch_parts[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int64_t at = int64_t{min(begin + j, splits - 1)} * step.heads;
      batch_states[j] = states[at * kStates];
      batch_parts[j] = partial[at * kPairVectors];
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (begin + j < splits) add(batch_states[j], batch_parts[j]);
    }
  }
  __nv_bfloat16* to = output.out + (int64_t{token} * step.heads + head) * kLatent +
                      vector / 4 * 32 + vector % 4 * 2;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    *reinterpret_cast<__nv_bfloat162*>(to + 8 * j) =
        __floats2bfloat162_rn(out[j].x / sum, out[j].y / sum);
  }
}

}  // namespace

template <bool kFp8>
static cudaError_t StartDecodeOf(const Maps& maps, const Step& step, const Output& output,
                                 float scale_log2, int blocks, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Shared);
  static_assert(kBytes <= 227 * 1024);
  Gpu::OfThread().AllowSharedMemory(DecodeKernel<kFp8>, kBytes);
  return LaunchEarly(DecodeKernel<kFp8>, dim3(blocks), kFp8 ? kFp8Threads : kThreads, kBytes,
                     stream, maps, step, output, scale_log2);
}
cudaError_t StartDecode(const Maps& maps, const Step& step, const Output& output, float scale_log2,
                        int blocks, cudaStream_t stream) {
  return (step.fp8 ? StartDecodeOf<true> : StartDecodeOf<false>)(maps, step, output, scale_log2,
                                                                 blocks, stream);
}

cudaError_t StartCombine(const Step& step, const Output& output, int32_t tokens,
                         cudaStream_t stream) {
  // Few blocks wait for memory one batch after another; many need its registers for each other.
  const auto kernel = int64_t{tokens} * step.heads <= 1024 ? CombineKernel<16> : CombineKernel<4>;
  return LaunchEarly(kernel, dim3(tokens, (step.heads + kCombineHeads - 1) / kCombineHeads),
                     kCombineThreads, 0, stream, step, output);
}

}  // namespace fathom::mla
