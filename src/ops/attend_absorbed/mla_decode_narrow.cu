// MLA decode for at most 16 heads: s = scale (q_latent . latent + q_rope . rope), out = softmax(s)
// latent. Tiles of 64 positions are M of wgmma, 16 heads N; a token is worked on by one block where
// there are many tokens, by many where there are few.
// Bytes: 1152 a cached position; operations: 2176 a position and head.
// fp32 accumulators; weights are rounded to BF16; groups of positions are merged in fp32.
// Expected on an H200: 16 heads, 128 rows of 4096: 604 MB, 150 us; see docs/design/mla_decode.md.
#include "ops/attend_absorbed/mla_decode_narrow.cuh"

namespace fathom::mla {
namespace {

__global__ void __launch_bounds__(kThreads, 1)
    NarrowKernel(const __grid_constant__ Maps maps, const __grid_constant__ NarrowStep step,
                 const __grid_constant__ NarrowOutput output, float scale_log2) {
  extern __shared__ __align__(1024) uint8_t memory[];
  NarrowShared& s = *reinterpret_cast<NarrowShared*>(memory);
  if (threadIdx.x == 0) {
    s.query_full.Init(1);
    s.query_empty.Init(8);
    for (int buffer = 0; buffer < 2; ++buffer) {
      s.full[buffer][0].Init(1);
      s.full[buffer][1].Init(1);
      s.empty[buffer].Init(4);
    }
    FenceMbarrierInit();
    PrefetchTensorMap(&maps.latent);
    PrefetchTensorMap(&maps.rope);
    PrefetchTensorMap(&maps.q_latent);
    PrefetchTensorMap(&maps.q_rope);
  }
  __syncthreads();
  WaitForPriorKernels();
  AllowNextKernel();
  const int group = static_cast<int>(threadIdx.x / 128);
  if (group == 2) {
    if (threadIdx.x / 32 == 8) ProduceNarrow(s, maps, step);
  } else if (group == 0) {
    NarrowConsumer<0>(s, step, output, scale_log2).Run();
  } else {
    NarrowConsumer<1>(s, step, output, scale_log2).Run();
  }
}

// Folds the groups that blocks computed one by one into what the first ones gave, in order. A
// thread has one value of those that it had in NarrowConsumer: index blockIdx.y of result_.
__global__ void __launch_bounds__(256) CombineNarrow(const __grid_constant__ NarrowStep step,
                                                     const __grid_constant__ NarrowOutput output) {
  WaitForPriorKernels();
  AllowNextKernel();
  const int32_t token = static_cast<int32_t>(blockIdx.x), i = static_cast<int32_t>(blockIdx.y);
  if (token >= *step.live) return;
  const int32_t prefix = *step.prefix;
  const int32_t singles = step.positions[token] / step.group_tokens + 1 - prefix;
  if (singles <= 0) return;
  const int group = static_cast<int>(threadIdx.x / 128),
            thread = static_cast<int>(threadIdx.x % 128);
  const int lane = thread % 32, warp = thread / 32;
  const int head = i % 8 / 4 * 8 + 2 * (lane % 4) + i % 2;
  if (head >= step.heads) return;
  const float* values = output.parts + group * 4096 + i * 128 + thread;
  const float2* states = output.states + head;
  const int64_t first = int64_t{step.tokens} + step.first_single[token];
  const float2 begin = states[int64_t{token} * kNarrowHeads];
  Running running = {begin.x, begin.y};
  float result = values[int64_t{token} * kPartValues];
#pragma unroll 8
  for (int32_t single = 0; single < singles; ++single) {
    const float2 state = states[(first + single) * kNarrowHeads];
    const float value = values[(first + single) * kPartValues];
    float keep, take;
    running.Fold(state.x, state.y, keep, take);
    result = Running::Apply(result, keep, value, take);
  }
  const int value = (4 * group + i / 8) * 64 + warp * 16 + lane / 4 + i % 4 / 2 * 8;
  output.out[(int64_t{token} * step.heads + head) * kLatent + value] =
      __float2bfloat16_rn(result / running.sum);
}

template <class... Parameters, class... Arguments>
cudaError_t StartEarly(void (*kernel)(Parameters...), dim3 blocks, int threads, size_t shared,
                       cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace

cudaError_t StartNarrow(const Maps& maps, const NarrowStep& step, const NarrowOutput& output,
                        float scale_log2, int blocks, cudaStream_t stream) {
  constexpr int kBytes = sizeof(NarrowShared);
  static_assert(kBytes <= 227 * 1024);
  const cudaError_t error =
      cudaFuncSetAttribute(NarrowKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  return StartEarly(NarrowKernel, dim3(blocks), kThreads, kBytes, stream, maps, step, output,
                    scale_log2);
}

cudaError_t StartCombineNarrow(const NarrowStep& step, const NarrowOutput& output,
                               cudaStream_t stream) {
  return StartEarly(CombineNarrow, dim3(step.tokens, 32), 256, 0, stream, step, output);
}

}  // namespace fathom::mla
