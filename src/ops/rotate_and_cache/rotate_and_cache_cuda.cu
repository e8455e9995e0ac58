// What MLA does between projections and scores, on CUDA, in one kernel.
//   formula:       latent / sqrt(mean(latent^2) + eps) * weight -> page; key, rotated -> page;
//                  queries rotated in place
//   data mapping:  DeepSeek's latents of 512 and keys of 64: a warp per token for latent and key,
//                  and one per token and 16 heads, 16 bytes a lane at a time; else blocks of 256
//                  threads, one per token and one per token and 256 pairs of the queries
//   bytes, FLOPs:  4 bytes a channel of latent, key and queries; 4 FLOP a number
//   accumulator:   fp32 per thread, then a tree over the block
//   expected time: bytes at the bandwidth, V3, 4096 tokens: 36 us; docs/design/cuda-backend.md,
//                  "Passes"
#include "ops/page_tokens.cuh"
#include "products/cuda/quantize_vector.cuh"

namespace fathom {
namespace kernels {

struct Rotation {
  Slices<const BF16> kv_a;
  const float* latent_norm;
  float eps;
  Slices<BF16> q_rope;
  int64_t head_stride, heads, max_positions, count;  // count: tokens there is room for
  const float* cos_sin;
  Tokens tokens;
};

constexpr int kThreads = 256;

// Turns pair i from `from` to `to`, which may be one.
template <class To>
__device__ void Rotate(const BF16* from, To* to, const float* cos_sin, int64_t half, int64_t i) {
  const float even = Load(from + 2 * i), odd = Load(from + 2 * i + 1);
  const float cos = cos_sin[i], sin = cos_sin[half + i];
  Store(to + 2 * i, even * cos - odd * sin);
  Store(to + 2 * i + 1, even * sin + odd * cos);
}

// Of any widths.
template <class T>
__global__ void __launch_bounds__(kThreads) RotateAndCache(Rotation a, Pages<T> pages) {
  AfterPriorKernels();
  __shared__ float scratch[kWarp];
  const int64_t t = blockIdx.x, half = pages.rope_dim / 2;
  const int32_t live = *a.tokens.live;
  const int64_t position = a.tokens.positions[t];  // does not wait for `live`
  if (t >= live) return;
  DEVICE_CHECK(position < a.max_positions, "rotate_and_cache: position", position);
  const float* cos_sin = a.cos_sin + position * 2 * half;
  if (blockIdx.y > 0) {
    const int64_t pair = (int64_t{blockIdx.y} - 1) * kThreads + threadIdx.x, head = pair / half;
    BF16* query = a.q_rope[t] + head * a.head_stride;
    if (head < a.heads) Rotate(query, query, cos_sin, half, pair % half);
    return;
  }
  const int32_t page = PageOf(a.tokens.Table(t), a.tokens.max_pages, position, pages);
  const BF16 *latent = a.kv_a[t], *key = latent + pages.latent_dim;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < pages.latent_dim; i += blockDim.x) {
    sum += Load(latent + i) * Load(latent + i);
  }
  sum = BlockReduce(sum, 0.0f, scratch, Plus());
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(pages.latent_dim) + a.eps);
  const auto normed = [&](int64_t i) { return Load(latent + i) * scale * a.latent_norm[i]; };
  StoreLatent(pages, page, position, normed, scratch);
  for (int64_t i = threadIdx.x; i < half; i += kThreads) {
    Rotate(key, pages.Rope(page, position), cos_sin, half, i);
  }
}

constexpr int kLatent = 512, kHalf = 32;              // channels; pairs of a key
constexpr int kTokensOfBlock = 4, kHeadsOfWarp = 16;  // a token a warp
constexpr int kLanesOfHead = 2 * kHalf / kVector;     // eight channels each
constexpr int kHeadsAtOnce = kWarp / kLanesOfHead, kQueries = kHeadsOfWarp / kHeadsAtOnce;

// Cosines and sines of the four pairs of a vector.
struct Turn {
  __device__ Turn(const float* cos_sin, int vector)
      : cos(reinterpret_cast<const float4*>(cos_sin)[vector]),
        sin(reinterpret_cast<const float4*>(cos_sin + kHalf)[vector]) {}
  __device__ Vector operator()(const Vector& x) const {
    const float c[4] = {cos.x, cos.y, cos.z, cos.w}, s[4] = {sin.x, sin.y, sin.z, sin.w};
    Vector y;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float even = x.v[2 * i], odd = x.v[2 * i + 1];
      y.v[2 * i] = even * c[i] - odd * s[i];
      y.v[2 * i + 1] = even * s[i] + odd * c[i];
    }
    return y;
  }
  float4 cos, sin;
};

__device__ __forceinline__ uint4 LoadBits(const BF16* p) {
  return *reinterpret_cast<const uint4*>(p);
}
__device__ __forceinline__ void StoreVector(BF16* to, const Vector& x) {
  *reinterpret_cast<uint4*>(to) = Pack(x);
}
__device__ __forceinline__ void StoreVector(float* to, const Vector& x) {
  reinterpret_cast<float4*>(to)[0] = {x.v[0], x.v[1], x.v[2], x.v[3]};
  reinterpret_cast<float4*>(to)[1] = {x.v[4], x.v[5], x.v[6], x.v[7]};
}

// The sum of squares of 512 numbers, of which a lane has eight from 8 lane on and eight from
// 256 + 8 lane on; in the order of RotateAndCache, whose thread t has t and 256 + t.
__device__ __forceinline__ float SumOfSquares(const Vector (&x)[2]) {
  float sum[kVector];
#pragma unroll
  for (int c = 0; c < kVector; ++c) {
    sum[c] = fmaf(x[1].v[c], x[1].v[c], x[0].v[c] * x[0].v[c]);
    sum[c] += __shfl_xor_sync(kAllLanes, sum[c], 2);
    sum[c] += __shfl_xor_sync(kAllLanes, sum[c], 1);
  }
  float all = ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
  for (int lanes = 16; lanes >= 4; lanes /= 2) all += __shfl_xor_sync(kAllLanes, all, lanes);
  return all;
}

// Normed latents to their page: the whole warp.
template <class T>
__device__ __forceinline__ void StoreLatents(const Pages<T>& pages, int32_t page, int64_t position,
                                             int lane, const Vector (&x)[2]) {
  T* to = pages.Latent(page, position) + lane * kVector;
  if constexpr (Pages<T>::kFp8) {
    float largest = 0;
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      largest = LargerMagnitude(LargerMagnitude(largest, x[0].v[c]), x[1].v[c]);
    }
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
      largest = LargerMagnitude(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
    }
    const float scale = RunScale(largest, /*ue8m0=*/true);
    if (lane == 0) *pages.Scale(page, position) = scale;
    *reinterpret_cast<uint2*>(to) = Codes(x[0], scale);
    *reinterpret_cast<uint2*>(to + kLatent / 2) = Codes(x[1], scale);
  } else {
    StoreVector(to, x[0]);
    StoreVector(to + kLatent / 2, x[1]);
  }
}

// `tokens` is early (op.h): every table's projection waits before it lets this begin.
template <class T>
__global__ void __launch_bounds__(kTokensOfBlock* kWarp) RotateVectors(Rotation a, Pages<T> pages) {
  AllowNextKernel();
  const int lane = threadIdx.x % kWarp, vector = lane % kLanesOfHead;
  const int64_t t = int64_t{blockIdx.x} * kTokensOfBlock + threadIdx.x / kWarp;
  const bool live = t < a.count && t < *a.tokens.live;
  const int64_t position = t < a.count ? a.tokens.positions[t] : 0;  // does not wait for `live`
  DEVICE_CHECK(!live || position < a.max_positions, "rotate_and_cache: position", position);
  const Turn turn(a.cos_sin + (live ? position : 0) * 2 * kHalf, vector);
  if (blockIdx.y > 0) {
    WaitForPriorKernels();
    if (!live) return;
    const int64_t first = (int64_t{blockIdx.y} - 1) * kHeadsOfWarp + lane / kLanesOfHead;
    BF16* query = a.q_rope[t] + first * a.head_stride + vector * kVector;
    uint4 bits[kQueries];
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      const int64_t head = i * kHeadsAtOnce;
      if (first + head < a.heads) bits[i] = LoadBits(query + head * a.head_stride);
    }
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      const int64_t head = i * kHeadsAtOnce;
      if (first + head < a.heads) StoreVector(query + head * a.head_stride, turn(Unpack(bits[i])));
    }
    return;
  }
  const int32_t page = live ? PageOf(a.tokens.Table(t), a.tokens.max_pages, position, pages) : 0;
  const Vector weight[2] = {ReadVector(a.latent_norm + lane * kVector),
                            ReadVector(a.latent_norm + kLatent / 2 + lane * kVector)};
  WaitForPriorKernels();
  if (!live) return;
  const BF16* latent = a.kv_a[t];
  Vector x[2] = {Unpack(LoadBits(latent + lane * kVector)),
                 Unpack(LoadBits(latent + kLatent / 2 + lane * kVector))};
  const uint4 key = LoadBits(latent + kLatent + vector * kVector);
  const float scale = 1.0f / sqrtf(SumOfSquares(x) / kLatent + a.eps);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int c = 0; c < kVector; ++c) x[i].v[c] = x[i].v[c] * scale * weight[i].v[c];
  }
  StoreLatents(pages, page, position, lane, x);
  if (lane < kLanesOfHead) {
    StoreVector(pages.Rope(page, position) + vector * kVector, turn(Unpack(key)));
  }
}

static bool IsAligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

static bool TakesVectors(const RotateAndCacheArgs& a) {
  return a.pages.latent.dim(2) == kLatent && a.q_rope.dim(2) == 2 * kHalf &&
         a.kv_a.stride(0) % kVector == 0 && a.q_rope.stride(0) % kVector == 0 &&
         a.q_rope.stride(1) % kVector == 0 && IsAligned(a.kv_a.data()) &&
         IsAligned(a.q_rope.data()) && IsAligned(a.latent_norm.data()) &&
         IsAligned(a.cos_sin.data()) && IsAligned(a.pages.latent.data()) &&
         IsAligned(a.pages.rope.data());
}

template <class T>
void LaunchRotateAndCache(cudaStream_t stream, const RotateAndCacheArgs& a) {
  const Rotation rotation = {.kv_a = SlicesOf<const BF16>(a.kv_a),
                             .latent_norm = Data<float>(a.latent_norm),
                             .eps = a.eps,
                             .q_rope = SlicesOf<BF16>(a.q_rope),
                             .head_stride = a.q_rope.stride(1),
                             .heads = a.q_rope.dim(1),
                             .max_positions = a.cos_sin.dim(0),
                             .count = a.kv_a.dim(0),
                             .cos_sin = Data<float>(a.cos_sin),
                             .tokens = TokensOf(a.tokens)};
  if (TakesVectors(a)) {
    const dim3 grid(Blocks(rotation.count, kTokensOfBlock),
                    1 + Blocks(rotation.heads, kHeadsOfWarp));
    return LaunchOverlapped(RotateVectors<T>, grid, kTokensOfBlock * kWarp, 0, stream, rotation,
                            PagesOf<T>(a.pages));
  }
  const dim3 grid(static_cast<unsigned>(rotation.count),
                  1 + Blocks(rotation.heads * a.q_rope.dim(2) / 2, kThreads));
  LaunchOverlapped(RotateAndCache<T>, grid, kThreads, 0, stream, rotation, PagesOf<T>(a.pages));
}

}  // namespace kernels

void RotateAndCacheCuda(OpContext& context, const RotateAndCacheArgs& a) {
  if (a.kv_a.dim(0) == 0) return;
  kernels::WithLatentType(a.pages, [&](auto type) {
    kernels::LaunchRotateAndCache<decltype(type)>(Cuda(context).get(), a);
  });
  Cuda(context).CheckLaunch("rotate_and_cache", a.kv_a);
}

}  // namespace fathom
