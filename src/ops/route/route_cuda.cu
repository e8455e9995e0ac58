// Routing on CUDA: the router's product and the choice of experts, in one launch.
//   formula:       as ops.h says for RouteArgs
//   data mapping:  a warp per kRows tokens and kColumns experts, lanes along the channels; of the
//                  blocks that share tokens the last to end chooses for them, a warp per token
//   bytes, FLOPs:  the gate once per block's tokens, x once per block's experts, from L2; 2 FLOP a
//                  weight and token
//   accumulator:   fp32: lane l takes channels 4l to 4l + 3 of every 128, in ascending order; then
//                  the lanes are added in a tree: the same for every tile
//   expected time: docs/design/cuda-backend.md
#include "ops/cuda_kernels.cuh"

namespace fathom {
namespace kernels {

constexpr int kUsualExperts = 256, kMaxExperts = 1024;
constexpr int kStepChannels = kWarp * 4;
constexpr int kMaxTokenTiles = 8192;
constexpr size_t kMostShared = 48 << 10;

struct Router {
  Rows<const BF16> x;
  const float *gate, *bias;
  int32_t tokens, hidden, experts, topk, n_group, topk_group;
  RouterScoring scoring;
  RouterSelection selection;
  bool norm_topk_prob;
  float scaling;
  const int32_t* live;
  float* logits;  // [tokens, experts]
  Rows<int32_t> ids;
  Rows<float> weights;
  int32_t choosers;  // warps of a block that have shared memory to choose in
};

// Blocks that have written the logits of each tile of tokens. Between launches, all of one stream
// (CudaDevice), they are zero again.
__device__ uint32_t arrived[kMaxTokenTiles];

// What a warp multiplies, and how a block's warps lie.
template <int kRows_, int kColumns_, int kDown_, int kAcross_, int kUnroll_, bool kUsual_ = true>
struct Tile {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kDown = kDown_, kAcross = kAcross_;
  static constexpr int kUnroll = kUnroll_, kSums = kRows * kColumns;
  static constexpr bool kUsual = kUsual_;  // whole vectors in a row, 8 to kUsualExperts experts
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

// x [kRows, hidden] times gate [kColumns, hidden]: this lane's part of the sums.
template <class T>
__device__ inline void AddProducts(const Router& a, const BF16* x, const float* gate,
                                   float (&sums)[T::kSums]) {
  const int stride = static_cast<int>(a.x.stride);
#pragma unroll T::kUnroll
  for (int k = threadIdx.x % kWarp * 4; k < a.hidden; k += kStepChannels) {
    float4 xs[T::kRows];
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      xs[r] = LoadFour<T::kUsual>(x + r * stride, k, a.hidden);
    }
#pragma unroll
    for (int c = 0; c < T::kColumns; ++c) {
      const float4 g = LoadFour<T::kUsual>(gate + c * a.hidden, k, a.hidden);
#pragma unroll
      for (int r = 0; r < T::kRows; ++r) {
        float& sum = sums[r * T::kColumns + c];
        sum = fmaf(xs[r].x, g.x, sum);
        sum = fmaf(xs[r].y, g.y, sum);
        sum = fmaf(xs[r].z, g.z, sum);
        sum = fmaf(xs[r].w, g.w, sum);
      }
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

// The logits of the block's tokens and experts.
template <class T>
__device__ inline void WriteLogits(const Router& a, int first, int live) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int row = first + warp / T::kAcross * T::kRows;
  const int column = static_cast<int>(blockIdx.x) * T::kExperts + warp % T::kAcross * T::kColumns;
  if (row >= live || column >= a.experts) return;
  // A part of a tile takes some of its neighbour's, whose bits are the same.
  const int x_row = min(row, a.tokens - T::kRows), gate_row = min(column, a.experts - T::kColumns);
  float sums[T::kSums] = {};
  AddProducts<T>(a, a.x[x_row], a.gate + int64_t{gate_row} * a.hidden, sums);
  AddLanes(sums, lane);
  constexpr int kEach = T::kSums > kWarp ? T::kSums / kWarp : 1;
  if (lane * T::kSums % kWarp != 0) return;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int sum = lane * T::kSums / kWarp + i;
    const int t = x_row + sum / T::kColumns, e = gate_row + sum % T::kColumns;
    if (t >= row && t < live && e >= column) a.logits[int64_t{t} * a.experts + e] = sums[i];
  }
}

// Numbers that are in the order of RanksAbove(): equal for 0 and -0, 1 for NaN. 0: taken.
__device__ inline uint32_t KeyOf(float x) {
  if (isnan(x)) return 1;
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// The index of the greatest of keys[0, n), ties to the lower, in every lane; it becomes taken.
__device__ inline int TakeBest(uint32_t* keys, int n) {
  uint32_t key = 0, best = 0xffffffffu;
  for (int i = threadIdx.x % kWarp; i < n; i += kWarp) {
    if (keys[i] <= key) continue;
    key = keys[i];
    best = i;
  }
  const uint32_t greatest = __reduce_max_sync(kAllLanes, key);
  best = __reduce_min_sync(kAllLanes, key == greatest ? best : 0xffffffffu);
  if (threadIdx.x % kWarp == best % kWarp) keys[best] = 0;  // the lane that reads it
  return static_cast<int>(best);
}

// The best of a group, or the sum of its best two.
__device__ inline float GroupScore(const float* choice, int n, bool top_two) {
  float best = NAN, second = NAN;
  for (int i = 0; i < n; ++i) {
    if (RanksAbove(choice[i], best)) {
      second = best;
      best = choice[i];
    } else if (RanksAbove(choice[i], second)) {
      second = choice[i];
    }
  }
  return top_two && n > 1 ? best + second : best;
}

// Logits of experts lane, 32 + lane, ..., to scores.
template <int kEach>
__device__ inline void Score(const Router& a, float (&scores)[kEach]) {
  if (a.scoring == RouterScoring::kSigmoid) {
#pragma unroll
    for (float& score : scores) score = 1.0f / (1.0f + expf(-score));
    return;
  }
  float max = -INFINITY, sum = 0;
#pragma unroll
  for (const float score : scores) max = fmaxf(max, score);
  max = WarpMax(max);
#pragma unroll
  for (float& score : scores) sum += score = expf(score - max);
  sum = WarpSum(sum);
#pragma unroll
  for (float& score : scores) score /= sum;
}

// Which groups are chosen: their keys become 0. `choice`: of all experts.
__device__ inline void ChooseGroups(const Router& a, const float* choice, uint32_t* groups) {
  const int size = a.experts / a.n_group;
  for (int g = threadIdx.x % kWarp; g < a.n_group; g += kWarp) {
    groups[g] = KeyOf(
        GroupScore(choice + g * size, size, a.selection == RouterSelection::kGroupTopTwoBiased));
  }
  for (int i = 0; i < a.topk_group; ++i) TakeBest(groups, a.n_group);
  __syncwarp();
}

// One token's experts. A lane has kEach of all in registers: every 32nd.
template <int kEach>
__device__ inline void ChooseExperts(const Router& a, int64_t t, float* choice) {
  const int lane = threadIdx.x % kWarp;
  const bool grouped = a.selection != RouterSelection::kGreedy;
  uint32_t* groups = reinterpret_cast<uint32_t*>(choice + a.experts);
  float scores[kEach];
  uint32_t keys[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = i * kWarp + lane;
    // Other blocks wrote it: from the L2.
    scores[i] = e < a.experts ? __ldcg(a.logits + t * a.experts + e) : -INFINITY;
  }
  Score(a, scores);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = i * kWarp + lane;
    if (e < a.experts) {
      const float biased = scores[i] + (a.bias == nullptr ? 0.0f : a.bias[e]);
      keys[i] = KeyOf(biased);
      if (grouped) choice[e] = biased;
    } else {
      keys[i] = 0;
    }
  }
  if (grouped) {
    __syncwarp();
    ChooseGroups(a, choice, groups);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = i * kWarp + lane;
      if (e < a.experts && groups[e / (a.experts / a.n_group)] != 0) keys[i] = KeyOf(-INFINITY);
    }
  }
  // Lane i keeps the i'th best.
  uint32_t my_id = 0;
  float my_score = 0, sum = 0;
  for (int j = 0; j < a.topk; ++j) {
    uint32_t key = 0, best = 0xffffffffu;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (keys[i] <= key) continue;
      key = keys[i];
      best = i * kWarp + lane;
    }
    const uint32_t greatest = __reduce_max_sync(kAllLanes, key);
    best = __reduce_min_sync(kAllLanes, key == greatest ? best : 0xffffffffu);
    float score = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (best != static_cast<uint32_t>(i * kWarp + lane)) continue;
      score = scores[i];
      keys[i] = 0;
    }
    score = __shfl_sync(kAllLanes, score, static_cast<int>(best % kWarp));
    sum += score;
    if (lane == j) {
      my_id = best;
      my_score = score;
    }
  }
  if (lane >= a.topk) return;
  a.ids[t][lane] = static_cast<int32_t>(my_id);
  a.weights[t][lane] = (a.norm_topk_prob ? my_score / (sum + 1e-20f) : my_score) * a.scaling;
}

// Whether this block is the last of its token tile's; then what the others wrote is there.
__device__ inline bool IsLast() {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(&arrived[blockIdx.y], gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

template <class T>
__global__ void __launch_bounds__(T::kThreads) Route(Router a) {
  extern __shared__ float shared[];
  AllowNextKernel();
  if (blockIdx.y == 0) {  // the gate does not depend on the kernels before
    constexpr int kLine = 128 / sizeof(float);
    const int64_t begin = int64_t{blockIdx.x} * T::kExperts * a.hidden;
    const int64_t end = min(begin + T::kExperts * a.hidden, int64_t{a.experts} * a.hidden);
    for (int64_t i = begin + threadIdx.x * kLine; i < end; i += T::kThreads * kLine) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(a.gate + i));
    }
  }
  WaitForPriorKernels();
  const int first = static_cast<int>(blockIdx.y) * T::kTokens, live = min(*a.live, a.tokens);
  if (first >= live) return;
  WriteLogits<T>(a, first, live);
  if (!IsLast()) return;
  const int warp = threadIdx.x / kWarp, end = min(first + T::kTokens, live);
  if (warp >= a.choosers) return;
  float* choice = shared + warp * (a.experts + a.n_group);
  for (int t = first + warp; t < end; t += min(a.choosers, T::kThreads / kWarp)) {
    if constexpr (!T::kUsual) {
      ChooseExperts<kMaxExperts / kWarp>(a, t, choice);
    } else if (a.experts <= 2 * kWarp) {
      ChooseExperts<2>(a, t, choice);
    } else {
      ChooseExperts<kUsualExperts / kWarp>(a, t, choice);
    }
    __syncwarp();
  }
}

template <class T>
void Launch(Router router, cudaStream_t stream) {
  const dim3 grid(Blocks(router.experts, T::kExperts), Blocks(router.tokens, T::kTokens));
  CHECK(grid.y <= kMaxTokenTiles, "route: {} tokens", router.tokens);
  const size_t bytes = static_cast<size_t>(router.experts + router.n_group) * sizeof(float);
  router.choosers =
      static_cast<int32_t>(std::min<size_t>(T::kThreads / kWarp, kMostShared / bytes));
  LaunchOverlapped(Route<T>, grid, T::kThreads, router.choosers * bytes, stream, router);
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
                         .scoring = a.scoring,
                         .selection = a.selection,
                         .norm_topk_prob = a.norm_topk_prob,
                         .scaling = a.scaling,
                         .live = Data<int32_t>(a.live),
                         .logits = reinterpret_cast<float*>(context.workspace.data()),
                         .ids = RowsOf<int32_t>(a.ids),
                         .weights = RowsOf<float>(a.weights)};
  const cudaStream_t stream = Cuda(context).get();
  const bool usual = router.hidden % 4 == 0 && router.x.stride % 4 == 0 && experts >= 8 &&
                     experts <= kUsualExperts;
  if (!usual) {
    Launch<Tile<1, 1, 8, 1, 1, false>>(router, stream);
  } else if (router.tokens == 1) {
    Launch<Tile<1, 1, 1, 2, 16>>(router, stream);
  } else if (router.tokens <= 8) {
    Launch<Tile<1, 1, 8, 1, 8>>(router, stream);
  } else if (router.tokens <= 512) {
    Launch<Tile<4, 4, 2, 4, 2>>(router, stream);
  } else {
    Launch<Tile<8, 8, 4, 4, 1>>(router, stream);
  }
  Cuda(context).CheckLaunch("route", a.x);
}

}  // namespace fathom
