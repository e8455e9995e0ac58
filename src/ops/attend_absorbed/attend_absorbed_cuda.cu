// Absorbed MLA on CUDA, for every shape: the safety net below the Hopper kernel.
//   formula:       out = softmax(scale * (q_latent . latent_j + q_rope . rope_j)) latent, online
//   data mapping:  a block per token and 4 heads walks the pages in order: a warp per position for
//                  the scores, a warp per head for the softmax, a thread per channel for the sum
//   bytes, FLOPs:  a context is read heads / 4 times, from L2 after the first;
//                  2 x (2 latent + rope) FLOP a head and position
//   accumulator:   fp32; scores: lanes, then a tree; outputs: in order of position, rescaled per
//                  page
//   builds on:     the online softmax (Milakov and Gimelshein, 2018)
//   expected time: not predicted: latency bound; not measured
#include "ops/page_tokens.cuh"

namespace fathom {
namespace kernels {

constexpr int kHeads = 4;  // of a block: one per warp
constexpr int kThreads = kHeads * kWarp;

struct Queries {
  const BF16 *latent, *rope;
  int64_t rope_token_stride, rope_head_stride, heads;
};

// A block's shared memory, after the queries and sums of its heads.
struct PageScores {
  float scores[kHeads][kPageTokens];
  float rescale[kHeads];
};

// q of the block's heads as fp32: [kHeads][latent + rope].
template <class T>
__device__ void LoadQueries(const Queries& q, int64_t t, int64_t head, const Pages<T>& pages,
                            float* to) {
  const int64_t width = pages.latent_dim + pages.rope_dim;
  for (int64_t i = threadIdx.x; i < kHeads * width; i += kThreads) {
    const int64_t h = min(head + i / width, q.heads - 1), c = i % width;
    const BF16* from = c < pages.latent_dim ? q.latent + (t * q.heads + h) * pages.latent_dim + c
                                            : q.rope + t * q.rope_token_stride +
                                                  h * q.rope_head_stride + (c - pages.latent_dim);
    to[i] = Load(from);
  }
}

// Positions [begin, begin + count), which lie in one page.
struct PagePart {
  int32_t page;
  int64_t begin;
  int count;
};

template <class T>
__device__ void ScorePage(const Pages<T>& pages, const PagePart& part, float scale, const float* q,
                          PageScores& s) {
  const int lane = threadIdx.x % kWarp;
  const int64_t width = pages.latent_dim + pages.rope_dim;
  for (int j = threadIdx.x / kWarp; j < part.count; j += kHeads) {
    const T* latent = pages.Latent(part.page, part.begin + j);
    const auto* rope = pages.Rope(part.page, part.begin + j);
    const float latent_scale = pages.LatentScale(part.page, part.begin + j);
    float sums[kHeads] = {};
    for (int64_t c = lane; c < width; c += kWarp) {
      const float k = c < pages.latent_dim ? Load(latent + c) * latent_scale
                                           : Load(rope + c - pages.latent_dim);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) sums[h] += q[h * width + c] * k;
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      sums[h] = WarpSum(sums[h]);
      if (lane == h) s.scores[h][j] = scale * sums[h];
    }
  }
}

// The warp's head: scores become exp(score - max); updates the running maximum and sum.
__device__ inline void SoftmaxPage(int count, float& max, float& sum, PageScores& s) {
  const int head = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  float page_max = -INFINITY;
  for (int j = lane; j < count; j += kWarp) page_max = fmaxf(page_max, s.scores[head][j]);
  const float new_max = fmaxf(max, WarpMax(page_max));
  float page_sum = 0;
  for (int j = lane; j < count; j += kWarp) {
    page_sum += s.scores[head][j] = expf(s.scores[head][j] - new_max);
  }
  const float rescale = expf(max - new_max);
  sum = sum * rescale + WarpSum(page_sum);
  max = new_max;
  if (lane == 0) s.rescale[head] = rescale;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    AttendAbsorbed(Queries q, Tokens tokens, Pages<T> pages, float scale, BF16* out) {
  extern __shared__ float shared[];
  __shared__ PageScores s;
  __shared__ float final_sums[kHeads];
  const int64_t t = blockIdx.x, head = int64_t{blockIdx.y} * kHeads;
  if (t >= *tokens.live) return;
  float* queries = shared;
  float* sums = shared + kHeads * (pages.latent_dim + pages.rope_dim);  // [kHeads][latent]
  LoadQueries(q, t, head, pages, queries);
  for (int64_t i = threadIdx.x; i < kHeads * pages.latent_dim; i += kThreads) sums[i] = 0;
  __syncthreads();

  const int64_t end = int64_t{tokens.positions[t]} + 1;
  float max = -INFINITY, sum = 0;
  for (int64_t begin = 0; begin < end; begin += kPageTokens) {
    const int count = static_cast<int>(min(int64_t{kPageTokens}, end - begin));
    const int32_t page = PageOf(tokens.Table(t), tokens.max_pages, begin, pages);
    ScorePage(pages, {page, begin, count}, scale, queries, s);
    __syncthreads();
    SoftmaxPage(count, max, sum, s);
    __syncthreads();
    for (int64_t c = threadIdx.x; c < pages.latent_dim; c += kThreads) {
      float x[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) x[h] = sums[h * pages.latent_dim + c] * s.rescale[h];
      for (int j = 0; j < count; ++j) {
        const float v =
            Load(pages.Latent(page, begin + j) + c) * pages.LatentScale(page, begin + j);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) x[h] += s.scores[h][j] * v;
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) sums[h * pages.latent_dim + c] = x[h];
    }
    __syncthreads();
  }
  if (threadIdx.x % kWarp == 0) final_sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < kHeads * pages.latent_dim; i += kThreads) {
    const int64_t h = i / pages.latent_dim;
    if (head + h >= q.heads) break;
    Store(out + (t * q.heads + head) * pages.latent_dim + i, sums[i] / final_sums[h]);
  }
}

template <class T>
void LaunchAttendAbsorbed(cudaStream_t stream, const AttendAbsorbedArgs& a) {
  const int64_t heads = a.q_latent.dim(1);
  const Pages<T> pages = PagesOf<T>(a.pages);
  const size_t shared =
      static_cast<size_t>(kHeads * (2 * pages.latent_dim + pages.rope_dim)) * sizeof(float);
  CHECK(shared <= size_t{40} << 10, "attend_absorbed: latents of {} channels", pages.latent_dim);
  const dim3 grid(static_cast<unsigned>(a.q_latent.dim(0)), Blocks(heads, kHeads));
  AttendAbsorbed<T><<<grid, kThreads, shared, stream>>>(
      {Data<BF16>(a.q_latent), Data<BF16>(a.q_rope), a.q_rope.stride(0), a.q_rope.stride(1), heads},
      TokensOf(a.tokens), pages, a.scale, Data<BF16>(a.out));
}

}  // namespace kernels

void AttendAbsorbedCuda(OpContext& context, const AttendAbsorbedArgs& a) {
  if (a.q_latent.elements() == 0) return;
  kernels::WithLatentType(a.pages, [&](auto type) {
    kernels::LaunchAttendAbsorbed<decltype(type)>(Cuda(context).get(), a);
  });
  Cuda(context).CheckLaunch("attend_absorbed", a.q_latent);
  if (a.values.weight != nullptr) HeadLinearCuda(context, a.values);
}

}  // namespace fathom
