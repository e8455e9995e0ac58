// MLA decode for at most 16 heads: s = scale (q_latent . latent + q_rope . rope), out = softmax(s)
// latent. Tiles of 64 positions are M of wgmma, 16 heads N; a token is worked on by one block where
// there are many tokens, by many where there are few.
// Bytes: 1152 a cached position; operations: 2176 a position and head.
// fp32 accumulators; weights are rounded to BF16; groups of positions are merged in fp32.
// Expected on an H200: 16 heads, 128 rows of 4096: 604 MB, 150 us; see docs/design/mla_decode.md.
#include "cuda/launch_early.cuh"
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
    LowerRegisters<56>();
    if (threadIdx.x / 32 == 8) ProduceNarrow(s, maps, step);
  } else if (group == 0) {
    RaiseRegisters<224>();
    NarrowConsumer<0>(s, step, output, scale_log2).Run();
  } else {
    RaiseRegisters<224>();
    NarrowConsumer<1>(s, step, output, scale_log2).Run();
  }
}

// Four values of a result, of two heads: what a thread of NarrowConsumer has at indices 4 i and up.
struct Four {
  Running state[2];
  float value[4] = {};

  __device__ void Fold(const float4& other_state, const float4& other) {
    float keep[2], take[2];
    state[0].Fold(other_state.x, other_state.y, keep[0], take[0]);
    state[1].Fold(other_state.z, other_state.w, keep[1], take[1]);
    value[0] = Running::Apply(value[0], keep[0], other.x, take[0]);
    value[1] = Running::Apply(value[1], keep[1], other.y, take[1]);
    value[2] = Running::Apply(value[2], keep[0], other.z, take[0]);
    value[3] = Running::Apply(value[3], keep[1], other.w, take[1]);
  }
  __device__ void Fold(const Four& other) {
    Fold(
        make_float4(other.state[0].max, other.state[0].sum, other.state[1].max, other.state[1].sum),
        make_float4(other.value[0], other.value[1], other.value[2], other.value[3]));
  }
};

// Folds the units that blocks computed one by one into what the first ones gave, in order: groups
// into sections, sections into the result. A block per token and index i.
__global__ void __launch_bounds__(256) CombineNarrow(const __grid_constant__ NarrowStep step,
                                                     const __grid_constant__ NarrowOutput output) {
  WaitForPriorKernels();
  AllowNextKernel();
  const int32_t token = static_cast<int32_t>(blockIdx.x), i = static_cast<int32_t>(blockIdx.y);
  // One round trip to memory, whether there is work or not.
  const int32_t live = *step.live, position = step.positions[token];
  const int2 plan = *step.plan;
  const int64_t first = int64_t{step.tokens} + step.first_single[token];
  const int32_t unit_groups = plan.x, prefix = plan.y;
  const int32_t singles = position / (unit_groups * kGroupTokens) + 1 - prefix;
  if (token >= live || singles <= 0) return;
  const int group = static_cast<int>(threadIdx.x / 128);
  const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
  const float4* values = output.parts + (group * 8 + i) * 128 + thread;
  const float4* states = output.states + i % 2 * 4 + lane % 4;
  const auto value_of = [&](int64_t part) { return values[part * (kPartValues / 4)]; };
  const auto state_of = [&](int64_t part) { return states[part * (kNarrowHeads / 2)]; };
  const int32_t section_units = step.section_tokens / (unit_groups * kGroupTokens);
  Four result, section;
  result.Fold(state_of(token), value_of(token));
  if (section_units > 1) {  // the first item was a group of the first section
    section = result;
    result = Four();
  }
  constexpr int kBatch = 8;  // parts whose loads are in flight together
  for (int32_t begin = 0; begin < singles; begin += kBatch) {
    float4 value[kBatch], state[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int64_t part = first + min(begin + j, singles - 1);
      value[j] = value_of(part);
      state[j] = state_of(part);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (begin + j >= singles) break;
      if ((prefix + begin + j) % section_units == 0) {
        if (section_units > 1) result.Fold(section);
        section = Four();
      }
      section.Fold(state[j], value[j]);
      if (section_units == 1) result.Fold(section);
    }
  }
  if (section_units > 1) result.Fold(section);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int head = i % 2 * 8 + 2 * (lane % 4) + j % 2;
    const int value = (4 * group + i / 2) * 64 + thread / 32 * 16 + lane / 4 + j / 2 * 8;
    if (head < step.heads) {
      output.out[(int64_t{token} * step.heads + head) * kLatent + value] =
          __float2bfloat16_rn(result.value[j] / result.state[j % 2].sum);
    }
  }
}

}  // namespace

cudaError_t StartNarrow(const Maps& maps, const NarrowStep& step, const NarrowOutput& output,
                        float scale_log2, int blocks, cudaStream_t stream) {
  constexpr int kBytes = sizeof(NarrowShared);
  static_assert(kBytes <= 227 * 1024);
  const cudaError_t error =
      cudaFuncSetAttribute(NarrowKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  return LaunchEarly(NarrowKernel, dim3(blocks), kThreads, kBytes, stream, maps, step, output,
                     scale_log2);
}

cudaError_t StartCombineNarrow(const NarrowStep& step, const NarrowOutput& output,
                               cudaStream_t stream) {
  return LaunchEarly(CombineNarrow, dim3(step.tokens, 8), 256, 0, stream, step, output);
}

}  // namespace fathom::mla
