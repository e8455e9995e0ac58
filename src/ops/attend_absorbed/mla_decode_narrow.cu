// MLA decode for at most 16 heads: s = scale (q_latent . latent + q_rope . rope), out = softmax(s)
// latent. Tiles of 64 positions are M of wgmma, 16 heads N; a token is worked on by one block where
// there are many tokens, by many where there are few.
// Bytes: 1152 a cached position (FP8: 644); operations: 2176 a position and head.
// fp32 accumulators; weights are rounded to BF16; groups of positions are merged in fp32.
// Expected on an H200: 16 heads, 128 rows of 4096: 604 MB, 150 us; see docs/design/mla_decode.md.
#include "cuda/launch_early.cuh"
#include "ops/attend_absorbed/mla_decode_narrow.cuh"

namespace fathom::mla {
namespace {

template <bool kFp8>
__global__ void __launch_bounds__(kThreads, 1)
    NarrowKernel(const __grid_constant__ Maps maps, const __grid_constant__ NarrowStep step,
                 const __grid_constant__ NarrowOutput output, float scale_log2) {
  extern __shared__ __align__(1024) uint8_t memory[];
  NarrowShared& s = *reinterpret_cast<NarrowShared*>(memory);
  if (threadIdx.x == 0) {
    s.query_full.Init(1);
    s.query_empty.Init(8);
    for (int buffer = 0; buffer < 2; ++buffer) {
      for (int half = 0; half < 2; ++half) {
        s.full[buffer][half].Init(1);
        s.widen.raw[buffer][half].Init(1);
      }
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
    if (threadIdx.x / 32 == 8) ProduceNarrow<kFp8>(s, maps, step);
  } else if (group == 0) {
    RaiseRegisters<224>();
    NarrowConsumer<0, kFp8>(s, step, output, scale_log2).Run();
  } else {
    RaiseRegisters<224>();
    NarrowConsumer<1, kFp8>(s, step, output, scale_log2).Run();
  }
}

// CombineNarrow looks at so many parts at a time: whole sections.
constexpr int kCombineParts = 64;
constexpr int kCombineHeads = 8;  // of a block

// The factors of a fold, for both sides' values and sums.
struct Factors {
  float keep, take;
};

// The same factors as Running::Fold gives when parts come one by one: the running maximum is known
// beforehand, so that all can be computed at once.
__device__ Factors FactorsOf(float max_before, float max) {
  Running before = {max_before, 0};
  Factors factors;
  before.Fold(max, 0, factors.keep, factors.take);
  return factors;
}

struct CombineShared {
  float2 state[kCombineParts][kCombineHeads];       // of a part: maximum, sum
  Factors group[kCombineParts][kCombineHeads];      // of folding a part into its section
  float section_max[kCombineParts][kCombineHeads];  // by section
  Factors section[kCombineParts][kCombineHeads];    // of folding a section into the result
};

__device__ __forceinline__ bool EndsSection(int part, int parts, int units_log2) {
  return ((part + 1) & ((1 << units_log2) - 1)) == 0 || part == parts - 1;
}

// Fills `s` for `parts` parts, whose states are there; max_before is of what came before them.
__device__ void ComputeFactors(CombineShared& s, int parts, int units_log2, float& max_before) {
  const int head = static_cast<int>(threadIdx.x % kCombineHeads);
  for (int part = static_cast<int>(threadIdx.x / kCombineHeads); part < parts; part += 32) {
    float max = -INFINITY;
    for (int i = part >> units_log2 << units_log2; i < part; ++i)
      max = fmaxf(max, s.state[i][head].x);
    s.group[part][head] = FactorsOf(max, s.state[part][head].x);
    if (EndsSection(part, parts, units_log2)) {
      s.section_max[part >> units_log2][head] = fmaxf(max, s.state[part][head].x);
    }
  }
  __syncthreads();
  const int sections = ((parts - 1) >> units_log2) + 1;
  float max = max_before;
  for (int i = 0, next = static_cast<int>(threadIdx.x / kCombineHeads); i < sections; ++i) {
    if (i == next) {
      s.section[i][head] = FactorsOf(max, s.section_max[i][head]);
      next += 32;
    }
    max = fmaxf(max, s.section_max[i][head]);
  }
  max_before = max;
  __syncthreads();
}

// Four values of a result, and the sums of weights of their two heads.
struct Four {
  float4 value = {};
  float2 sum = {};

  // `factors` of the first head; the second's follow.
  __device__ void Fold(const Four& other, const Factors* factors) {
    const Factors low = factors[0], high = factors[1];
    value.x = Running::Apply(value.x, low.keep, other.value.x, low.take);
    value.y = Running::Apply(value.y, high.keep, other.value.y, high.take);
    value.z = Running::Apply(value.z, low.keep, other.value.z, low.take);
    value.w = Running::Apply(value.w, high.keep, other.value.w, high.take);
    sum.x = Running::Apply(sum.x, low.keep, other.sum.x, low.take);
    sum.y = Running::Apply(sum.y, high.keep, other.sum.y, high.take);
  }
};

// Folds the units that blocks computed one by one into what the first ones gave, in order: groups
// into sections, sections into the result. A block per token and index i: a thread has four of the
// values that it had in NarrowConsumer, 4 i and up.
__global__ void __launch_bounds__(256) CombineNarrow(const __grid_constant__ NarrowStep step,
                                                     const __grid_constant__ NarrowOutput output) {
  __shared__ CombineShared s;
  WaitForPriorKernels();
  AllowNextKernel();
  const int32_t token = static_cast<int32_t>(blockIdx.x), i = static_cast<int32_t>(blockIdx.y);
  // One round trip to memory, whether there is work or not.
  const int32_t live = *step.live, position = step.positions[token];
  const int2 plan = *step.plan;
  const int64_t first = int64_t{step.tokens} + step.first_single[token] - 1;
  const int32_t unit_log2 = plan.x, prefix = plan.y;
  // The first item's part, then those of single units.
  const int32_t parts = (position >> (kGroupLog2 + unit_log2)) + 2 - prefix;
  if (token >= live || parts <= 1) return;
  const int32_t units_log2 = step.section_log2 - unit_log2;  // of a section
  const int group = static_cast<int>(threadIdx.x / 128);
  const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
  const float4* values = output.parts + (group * 8 + i) * 128 + thread;
  const auto* states = reinterpret_cast<const float2*>(output.states) + i % 2 * kCombineHeads;
  const auto place = [&](int32_t part) { return part == 0 ? int64_t{token} : first + part; };

  constexpr int kBatch = 16;  // parts whose values are on their way together
  Four result, section;
  float max_before = -INFINITY;
  for (int32_t begin = 0; begin < parts; begin += kCombineParts) {
    const int32_t count = min(kCombineParts, parts - begin);
    for (int at = static_cast<int>(threadIdx.x); at < count * kCombineHeads; at += 256) {
      s.state[at / kCombineHeads][at % kCombineHeads] =
          states[place(begin + at / kCombineHeads) * kNarrowHeads + at % kCombineHeads];
    }
    for (int32_t batch = 0; batch < count; batch += kBatch) {
      float4 value[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        value[j] = values[place(begin + min(batch + j, count - 1)) * (kPartValues / 4)];
      }
      if (batch == 0) {
        __syncthreads();
        ComputeFactors(s, count, units_log2, max_before);
      }
      const int head = 2 * (lane % 4);
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int32_t part = batch + j;
        if (part >= count) break;
        const float2* state = &s.state[part][head];
        section.Fold({value[j], {state[0].y, state[1].y}}, &s.group[part][head]);
        if (EndsSection(part, count, units_log2)) {
          result.Fold(section, &s.section[part >> units_log2][head]);
          section = Four();
        }
      }
    }
    __syncthreads();
  }
  const float value[4] = {result.value.x, result.value.y, result.value.z, result.value.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int head = i % 2 * kCombineHeads + 2 * (lane % 4) + j % 2;
    const int at = (4 * group + i / 2) * 64 + thread / 32 * 16 + lane / 4 + j / 2 * 8;
    if (head < step.heads) {
      output.out[(int64_t{token} * step.heads + head) * kLatent + at] =
          __float2bfloat16_rn(value[j] / (j % 2 == 0 ? result.sum.x : result.sum.y));
    }
  }
}

}  // namespace

template <bool kFp8>
static cudaError_t StartNarrowOf(const Maps& maps, const NarrowStep& step,
                                 const NarrowOutput& output, float scale_log2, int blocks,
                                 cudaStream_t stream) {
  constexpr int kBytes = sizeof(NarrowShared);
  static_assert(kBytes <= 227 * 1024);
  const cudaError_t error =
      cudaFuncSetAttribute(NarrowKernel<kFp8>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  return LaunchEarly(NarrowKernel<kFp8>, dim3(blocks), kThreads, kBytes, stream, maps, step, output,
                     scale_log2);
}
cudaError_t StartNarrow(const Maps& maps, const NarrowStep& step, const NarrowOutput& output,
                        float scale_log2, int blocks, cudaStream_t stream) {
  return (step.fp8 ? StartNarrowOf<true> : StartNarrowOf<false>)(maps, step, output, scale_log2,
                                                                 blocks, stream);
}

cudaError_t StartCombineNarrow(const NarrowStep& step, const NarrowOutput& output,
                               cudaStream_t stream) {
  return LaunchEarly(CombineNarrow, dim3(step.tokens, 8), 256, 0, stream, step, output);
}

}  // namespace fathom::mla
