// Routing on CUDA: the router's product and the choice of experts, of up to kFewTokens tokens in
// one launch.
//   formula:       as ops.h says for RouteArgs
//   data mapping:  product: a warp per kRows tokens and kColumns experts, lanes along the channels;
//                  choice: a warp per token
//   bytes, FLOPs:  the gate once per block's tokens, x once per block's experts, from L2; 2 FLOP a
//                  weight and token
//   accumulator:   fp32: lane l takes channels 4l to 4l + 3 of every 128, in ascending order; then
//                  the lanes are added in a tree: the same for every tile
//   expected time: docs/design/cuda-backend.md
#include "ops/mma_cuda.cuh"
#include "ops/route/choose_experts_cuda.cuh"

namespace fathom {
namespace kernels {

constexpr int kUsualExperts = 256, kMaxExperts = 1024;
constexpr int kStepChannels = kWarp * 4;
constexpr int kFewTokens = 8, kSomeTokens = 128;
constexpr int kAheadSteps = 16;  // of a gate's row, in registers
constexpr int kChoosers = 4;     // tokens of a block that only chooses

// Of few tokens, the complements of the logits' bits; 0: not there yet, as all are between
// launches. Those of a GPU are of one stream (CudaDevice: one at a time). No logit is the NaN of
// all ones: arithmetic's is 0x7fffffff.
__device__ uint32_t posted[kFewTokens * kUsualExperts];

// What a warp multiplies, and how a block's warps lie.
template <int kRows_, int kColumns_, int kDown_, int kAcross_, int kUnroll_, bool kAligned_ = true>
struct Tile {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kDown = kDown_, kAcross = kAcross_;
  static constexpr int kUnroll = kUnroll_, kSums = kRows * kColumns;
  static constexpr bool kAligned = kAligned_;  // rows of whole 16-byte vectors
  static constexpr int kTokens = kRows * kDown, kExperts = kColumns * kAcross;
  static constexpr int kThreads = kDown * kAcross * kWarp;
};

// Four channels from k on; zeros beyond the row.
template <bool kAligned, class T>
__device__ inline float4 LoadFour(const T* row, int k, int width) {
  if constexpr (!kAligned) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = k + i < width ? Load(row + k + i) : 0;
    return {x[0], x[1], x[2], x[3]};
  } else if constexpr (sizeof(T) == 2) {
    const uint2 two = *reinterpret_cast<const uint2*>(row + k);
    return {__uint_as_float(two.x << 16), __uint_as_float(two.x & 0xffff0000u),
            __uint_as_float(two.y << 16), __uint_as_float(two.y & 0xffff0000u)};
  } else {
    return *reinterpret_cast<const float4*>(row + k);
  }
}

template <int kRows, int kColumns>
__device__ inline void AddProducts(const float4 (&x)[kRows], const float4& gate, int column,
                                   float (&sums)[kRows * kColumns]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float& sum = sums[r * kColumns + column];
    sum = fmaf(x[r].x, gate.x, sum);
    sum = fmaf(x[r].y, gate.y, sum);
    sum = fmaf(x[r].z, gate.z, sum);
    sum = fmaf(x[r].w, gate.w, sum);
  }
}

// x [kRows, hidden] times gate [kColumns, hidden], from `step` on: this lane's part of the sums.
template <class T>
__device__ inline void MultiplyRows(const Router& a, const BF16* x, const float* gate, int step,
                                    float (&sums)[T::kSums]) {
  const int stride = static_cast<int>(a.x.stride);
#pragma unroll T::kUnroll
  for (int k = step * kStepChannels + threadIdx.x % kWarp * 4; k < a.hidden; k += kStepChannels) {
    float4 xs[T::kRows];
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      xs[r] = LoadFour<T::kAligned>(x + r * stride, k, a.hidden);
    }
#pragma unroll
    for (int c = 0; c < T::kColumns; ++c) {
      const float4 g = LoadFour<T::kAligned>(gate + c * a.hidden, k, a.hidden);
      AddProducts<T::kRows, T::kColumns>(xs, g, c, sums);
    }
  }
}

// WarpSum of each of kCount sums (a power of two), in as few shuffles: lane l has sum
// l * kCount / 32 in sums[0], and the next in sums[1] if there are 64.
template <int kOffset = kWarp / 2, int kCount>
__device__ inline void AddLanes(float (&sums)[kCount], int lane) {
  if constexpr (kOffset > 0) {
    constexpr int kLeft = kCount * kOffset * 2 / kWarp;  // sums of this lane
    if constexpr (kLeft <= 1) {
      sums[0] += __shfl_xor_sync(kAllLanes, sums[0], kOffset);
    } else {
      const bool upper = (lane & kOffset) != 0;
#pragma unroll
      for (int i = 0; i < kLeft / 2; ++i) {
        const float mine = upper ? sums[i + kLeft / 2] : sums[i];
        const float theirs = upper ? sums[i] : sums[i + kLeft / 2];
        sums[i] = mine + __shfl_xor_sync(kAllLanes, theirs, kOffset);
      }
    }
    AddLanes<kOffset / 2>(sums, lane);
  }
}

// The lanes' sums of a warp's tile, added, to put(token, expert, logit) where they are there.
template <class T, class Put>
__device__ inline void PutSums(const Router& a, int row, int column, int live,
                               float (&sums)[T::kSums], const Put& put) {
  const int lane = threadIdx.x % kWarp;
  AddLanes(sums, lane);
  if (lane * T::kSums % kWarp != 0) return;
#pragma unroll
  for (int i = 0; i < (T::kSums + kWarp - 1) / kWarp; ++i) {
    const int sum = lane * T::kSums / kWarp + i;
    const int t = row + sum / T::kColumns, e = column + sum % T::kColumns;
    if (t < live && e < a.experts) put(t, e, sums[i]);
  }
}

// The gate's first kSteps steps for one expert, which are read before the kernels before have
// ended.
template <int kSteps>
struct GateAhead {
  __device__ GateAhead(const Router& a, const float* gate) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int k = i * kStepChannels + static_cast<int>(threadIdx.x) % kWarp * 4;
      if (k < a.hidden) steps[i] = LoadFour<true>(gate, k, a.hidden);
    }
  }
  __device__ void Multiply(const Router& a, const BF16* x, float (&sums)[1]) const {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int k = i * kStepChannels + static_cast<int>(threadIdx.x) % kWarp * 4;
      if (k >= a.hidden) continue;
      const float4 xs[1] = {LoadFour<true>(x, k, a.hidden)};
      AddProducts<1, 1>(xs, steps[i], 0, sums);
    }
  }
  float4 steps[kSteps > 0 ? kSteps : 1];
};

// Asks for the block's rows of the gate, which do not depend on the kernels before either.
template <class T>
__device__ inline void PrefetchGate(const Router& a) {
  if (blockIdx.y > 0) return;
  constexpr int kLine = 128 / sizeof(float);
  const int64_t begin = int64_t{blockIdx.x} * T::kExperts * a.hidden;
  const int64_t end = min(begin + T::kExperts * a.hidden, int64_t{a.experts} * a.hidden);
  for (int64_t i = begin + threadIdx.x * kLine; i < end; i += T::kThreads * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(a.gate + i));
  }
}

// Waits for a token's logits, and makes their places zero again.
template <int kEach>
__device__ inline void TakePosted(const Router& a, int t, float (&scores)[kEach]) {
  uint32_t* const from = posted + t * kUsualExperts + threadIdx.x % kWarp;
  const int own = (a.experts - static_cast<int>(threadIdx.x) % kWarp + kWarp - 1) / kWarp;
  uint32_t bits[kEach] = {};
  for (bool waits = true; waits;) {
    waits = false;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i >= own || bits[i] != 0) continue;
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(bits[i]) : "l"(from + i * kWarp));
      waits |= bits[i] == 0;
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    scores[i] = i < own ? __uint_as_float(~bits[i]) : -INFINITY;
    if (i < own) from[i * kWarp] = 0;
  }
  __syncwarp();
}

// A block that chooses what the others post: a warp per token. Once for nothing, while it waits, so
// that the instructions are there.
template <int kEach>
__device__ inline void ChoosePosted(const Router& a, uint32_t* shared) {
  const int t = threadIdx.x / kWarp;
  float biases[kEach], scores[kEach] = {};
  LoadBiases(a, biases);
#pragma unroll 1
  for (int time = 0; time < 2; ++time) {
    if (time == 1) {
      WaitForPriorKernels();
      if (t >= min(*a.live, a.tokens)) return;
      TakePosted(a, t, scores);
    }
    ChooseExperts(a, t, biases, scores, shared + t * (a.experts + a.n_group), time == 1);
  }
}

// Up to kFewTokens: a block per expert, and a last one, which waits for those before it.
template <class T, int kEach>
__global__ void __launch_bounds__(T::kThreads) RouteFew(Router a) {
  static_assert(T::kSums == 1);
  extern __shared__ uint32_t shared[];
  AllowNextKernel();
  if (blockIdx.x == gridDim.x - 1) return ChoosePosted<kEach>(a, shared);
  PrefetchGate<T>(a);
  const float* gate = a.gate + int64_t{blockIdx.x} * a.hidden;
  constexpr int kAhead = T::kTokens == 1 ? kAheadSteps : 0;
  const GateAhead<kAhead> ahead(a, gate);
  WaitForPriorKernels();
  const int t = threadIdx.x / kWarp, live = min(*a.live, a.tokens);
  if (t >= live) return;
  float sums[1] = {};
  ahead.Multiply(a, a.x[t], sums);
  MultiplyRows<T>(a, a.x[t], gate, kAhead, sums);
  PutSums<T>(a, t, blockIdx.x, live, sums, [](int token, int e, float logit) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(posted + token * kUsualExperts + e),
                 "r"(~__float_as_uint(logit)));
  });
}

// The product of many tokens: a block's channels go through shared memory.
template <class T>
struct Stage {
  float gate[T::kExperts][kStepChannels];
  BF16 x[T::kTokens][kStepChannels];
};

template <class T, int kStages>
__global__ void __launch_bounds__(T::kThreads, 2) RouterLogitsOfMany(Router a) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto* stages = reinterpret_cast<Stage<T>*>(memory);
  AfterPriorKernels();
  const int first = static_cast<int>(blockIdx.y) * T::kTokens, live = min(*a.live, a.tokens);
  const int first_expert = static_cast<int>(blockIdx.x) * T::kExperts;
  if (first >= live) return;
  // Rows that are not there are those of the last one; their sums go nowhere.
  constexpr int kGateVectors = kStepChannels / 4, kGateStep = T::kThreads / kGateVectors;
  constexpr int kXVectors = kStepChannels / 8, kXStep = T::kThreads / kXVectors;
  static_assert(T::kExperts % kGateStep == 0 && T::kTokens % kXStep == 0);
  const int gate_row = threadIdx.x / kGateVectors, gate_k = threadIdx.x % kGateVectors * 4;
  const int x_row = threadIdx.x / kXVectors, x_k = threadIdx.x % kXVectors * 8;
  const float* gate[T::kExperts / kGateStep];
  const BF16* x[T::kTokens / kXStep];
#pragma unroll
  for (int i = 0; i < T::kExperts / kGateStep; ++i) {
    const int e = min(first_expert + gate_row + i * kGateStep, a.experts - 1);
    gate[i] = a.gate + int64_t{e} * a.hidden + gate_k;
  }
#pragma unroll
  for (int i = 0; i < T::kTokens / kXStep; ++i) {
    x[i] = a.x[min(first + x_row + i * kXStep, live - 1)] + x_k;
  }
  const auto load = [&](int k, Stage<T>& stage) {
#pragma unroll
    for (int i = 0; i < T::kExperts / kGateStep; ++i) {
      const bool valid = k + gate_k < a.hidden;
      CopyAsync(SharedAddressOf(&stage.gate[gate_row + i * kGateStep][gate_k]),
                valid ? gate[i] + k : a.gate, valid);
    }
#pragma unroll
    for (int i = 0; i < T::kTokens / kXStep; ++i) {
      const bool valid = k + x_k < a.hidden;
      CopyAsync(SharedAddressOf(&stage.x[x_row + i * kXStep][x_k]), valid ? x[i] + k : a.x.data,
                valid);
    }
  };
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) {
    if (step * kStepChannels < a.hidden) load(step * kStepChannels, stages[step]);
    CommitCopies();
  }
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int row = warp / T::kAcross * T::kRows, column = warp % T::kAcross * T::kColumns;
  float sums[T::kSums] = {};
  int current = 0, next = kStages - 1;
  for (int k = 0; k < a.hidden; k += kStepChannels) {
    WaitForCopies<kStages - 2>();
    __syncthreads();
    const int ahead = k + (kStages - 1) * kStepChannels;
    if (ahead < a.hidden) load(ahead, stages[next]);
    CommitCopies();
    const Stage<T>& stage = stages[current];
    float4 xs[T::kRows];
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) xs[r] = LoadFour<true>(stage.x[row + r], lane * 4, 0);
#pragma unroll
    for (int c = 0; c < T::kColumns; ++c) {
      AddProducts<T::kRows, T::kColumns>(xs, LoadFour<true>(stage.gate[column + c], lane * 4, 0), c,
                                         sums);
    }
    current = current + 1 == kStages ? 0 : current + 1;
    next = next + 1 == kStages ? 0 : next + 1;
  }
  WaitForCopies<0>();
  PutSums<T>(a, first + row, first_expert + column, live, sums,
             [&](int t, int e, float logit) { a.logits[int64_t{t} * a.experts + e] = logit; });
}

// The product of some tokens, or of rows that are not whole vectors.
template <class T>
__global__ void __launch_bounds__(T::kThreads) RouterLogits(Router a) {
  static_assert(T::kSums == 1);
  AllowNextKernel();
  PrefetchGate<T>(a);
  WaitForPriorKernels();
  const int row = static_cast<int>(blockIdx.y) * T::kTokens + static_cast<int>(threadIdx.x) / kWarp;
  const int live = min(*a.live, a.tokens);
  if (row >= live) return;
  float sums[1] = {};
  MultiplyRows<T>(a, a.x[row], a.gate + int64_t{blockIdx.x} * a.hidden, 0, sums);
  PutSums<T>(a, row, blockIdx.x, live, sums,
             [&](int t, int e, float logit) { a.logits[int64_t{t} * a.experts + e] = logit; });
}

template <int kEach>
__global__ void __launch_bounds__(kChoosers* kWarp) Choose(Router a) {
  extern __shared__ uint32_t shared[];
  AllowNextKernel();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float biases[kEach], scores[kEach];
  LoadBiases(a, biases);
  WaitForPriorKernels();
  const int64_t t = int64_t{blockIdx.x} * kChoosers + warp;
  if (t >= min(*a.live, a.tokens)) return;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = i * kWarp + lane;
    scores[i] = e < a.experts ? a.logits[t * a.experts + e] : -INFINITY;
  }
  ChooseExperts(a, t, biases, scores, shared + warp * (a.experts + a.n_group), true);
}

template <class T>
dim3 GridOf(const Router& a) {
  return dim3(Blocks(a.experts, T::kExperts), Blocks(a.tokens, T::kTokens));
}

// Of shared memory to choose for so many tokens of a block.
static size_t ChoiceBytes(const Router& a, int tokens) {
  return static_cast<size_t>(tokens * (a.experts + a.n_group)) * sizeof(uint32_t);
}

template <class T>
void LaunchFew(const Router& a, cudaStream_t stream) {
  const auto kernel = a.experts <= 2 * kWarp ? RouteFew<T, 2> : RouteFew<T, kUsualExperts / kWarp>;
  const dim3 grid(static_cast<unsigned>(a.experts) + 1);
  LaunchOverlapped(kernel, grid, T::kThreads, ChoiceBytes(a, T::kTokens), stream, a);
}

template <class T>
void LaunchSome(const Router& a, cudaStream_t stream) {
  LaunchOverlapped(RouterLogits<T>, GridOf<T>(a), T::kThreads, 0, stream, a);
}

template <class T, int kStages>
void LaunchMany(const Router& a, cudaStream_t stream) {
  constexpr int kBytes = kStages * sizeof(Stage<T>);
  static const cudaError_t attribute = cudaFuncSetAttribute(
      RouterLogitsOfMany<T, kStages>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  CUDA_CHECK(attribute);
  LaunchOverlapped(RouterLogitsOfMany<T, kStages>, GridOf<T>(a), T::kThreads, kBytes, stream, a);
}

static void LaunchChoose(const Router& a, cudaStream_t stream) {
  const auto kernel = a.experts <= 2 * kWarp   ? Choose<2>
                      : a.experts <= 8 * kWarp ? Choose<8>
                                               : Choose<kMaxExperts / kWarp>;
  LaunchOverlapped(kernel, Blocks(a.tokens, kChoosers), kChoosers * kWarp,
                   ChoiceBytes(a, kChoosers), stream, a);
}

}  // namespace kernels

size_t RouteCudaWorkspace(const Stream&, const RouteArgs& a) {
  return static_cast<size_t>(a.x.dim(0) * a.gate.dim(0)) * sizeof(float);
}

void RouteCuda(OpContext& context, const RouteArgs& a) {
  if (a.x.dim(0) == 0) return;
  using namespace kernels;
  const auto experts = static_cast<int32_t>(a.gate.dim(0));
  CHECK(experts <= kMaxExperts && a.ids.dim(1) <= kWarp, "route: {} of {} experts", a.ids.dim(1),
        experts);
  const Router router = {.x = RowsOf<const BF16>(a.x),
                         .gate = Data<float>(a.gate),
                         .bias = Data<float>(a.bias),
                         .tokens = static_cast<int32_t>(a.x.dim(0)),
                         .hidden = static_cast<int32_t>(a.gate.dim(1)),
                         .experts = experts,
                         .topk = static_cast<int32_t>(a.ids.dim(1)),
                         .n_group = a.n_group,
                         .topk_group = a.topk_group,
                         .group_size = experts / a.n_group,
                         .scoring = a.scoring,
                         .selection = a.selection,
                         .norm_topk_prob = a.norm_topk_prob,
                         .scaling = a.scaling,
                         .live = Data<int32_t>(a.live),
                         .logits = reinterpret_cast<float*>(context.workspace.data()),
                         .ids = RowsOf<int32_t>(a.ids),
                         .weights = RowsOf<float>(a.weights)};
  const cudaStream_t stream = Cuda(context).get();
  // A choice between kernels of equal bits.
  const bool vectors = router.hidden % 8 == 0 && router.x.stride % 8 == 0 &&
                       reinterpret_cast<uintptr_t>(router.x.data) % 16 == 0;
  if (vectors && experts <= kUsualExperts && router.tokens <= kFewTokens) {
    if (router.tokens == 1 && router.hidden <= kAheadSteps * kStepChannels) {
      LaunchFew<Tile<1, 1, 1, 1, 1>>(router, stream);
    } else {
      LaunchFew<Tile<1, 1, kFewTokens, 1, 8>>(router, stream);
    }
    return Cuda(context).CheckLaunch("route", a.x);
  }
  if (!vectors) {
    LaunchSome<Tile<1, 1, 8, 1, 1, false>>(router, stream);
  } else if (router.tokens <= kSomeTokens) {
    LaunchSome<Tile<1, 1, 8, 1, 8>>(router, stream);
  } else {
    LaunchMany<Tile<8, 8, 4, 2, 1>, 3>(router, stream);
  }
  LaunchChoose(router, stream);
  Cuda(context).CheckLaunch("route", a.x);
}

}  // namespace fathom
