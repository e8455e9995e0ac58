// Experts on CUDA, for every format and shape.
//   formula:       out[t] = sum over j of weights[t, j] * down[e](silu(gate[e] x) * up[e] x)
//   data mapping:  a warp per (token, j) and channel of the product; then one per token and output,
//                  which walks the token's experts in order
//   bytes, FLOPs:  every chosen expert's weights once per token that chose it (from L2 where tokens
//                  share it); 6 FLOP a weight position
//   accumulator:   fp32, in the order of products/cuda/warp_product.cuh; the product stays in fp32,
//                  each expert's output is rounded to BF16, as the tensor cores' paths do and ranks
//                  send it
//   expected time: V2-Lite, 1 token, BF16: 104 MB at the device's bandwidth; not measured
#include "ops/cuda_ops.h"
#include "ops/moe_experts/bf16_experts_cuda.h"
#include "products/cuda/quantize_runs.h"
#include "products/cuda/silu_mul.cuh"
#include "products/cuda/warp_product.cuh"

namespace fathom {
namespace kernels {

constexpr int kWarpsOfExperts = 8;

struct Routing {
  const int32_t* ids;    // [tokens, topk]
  const float* weights;  // [tokens, topk]
  const int32_t* live;   // tokens
  int64_t topk;
};

// product[t * topk + j] of channel i.
template <class W, class X>
__global__ void GateUp(Matrices m, Slices<const X> x, const float* x_scales, Routing routing,
                       float* product) {
  const int64_t pair = blockIdx.x, t = pair / routing.topk, inter = m.out / 2;
  const int64_t i = int64_t{blockIdx.y} * kWarpsOfExperts + threadIdx.x / kWarp;
  if (t >= *routing.live || i >= inter) return;
  const int32_t expert = routing.ids[pair];
  DEVICE_CHECK(expert >= 0 && expert < m.count, "moe_experts: expert", expert);
  const ActivationsOfToken<X> token[1] = {
      {x[t], x_scales == nullptr ? nullptr : x_scales + t * m.runs}};
  float gate[1], up[1];
  WarpProduct<W>(m, expert, i, token, gate);
  WarpProduct<W>(m, expert, inter + i, token, up);
  if (threadIdx.x % kWarp == 0) product[pair * inter + i] = SiluMul(gate[0], up[0]);
}

template <class W, class X>
__global__ void Down(Matrices m, const X* product, const float* product_scales, Routing routing,
                     Slices<BF16> out) {
  const int64_t t = blockIdx.x;
  const int64_t n = int64_t{blockIdx.y} * kWarpsOfExperts + threadIdx.x / kWarp;
  if (t >= *routing.live || n >= m.out) return;
  float sum = 0;
  for (int64_t j = 0; j < routing.topk; ++j) {
    const int64_t pair = t * routing.topk + j;
    const ActivationsOfToken<X> token[1] = {
        {product + pair * m.in,
         product_scales == nullptr ? nullptr : product_scales + pair * m.runs}};
    float y[1];
    WarpProduct<W>(m, routing.ids[pair], n, token, y);
    sum = fmaf(routing.weights[pair], __bfloat162float(__float2bfloat16_rn(y[0])), sum);
  }
  if (threadIdx.x % kWarp == 0) Store(out[t] + n, sum);
}

template <class W, class X>
void LaunchGateUp(cudaStream_t stream, const MoeExpertsArgs& a, Slices<const X> x,
                  const float* x_scales, const Routing& routing, float* product) {
  const dim3 grid(static_cast<unsigned>(a.ids.elements()), Blocks(a.down->in, kWarpsOfExperts));
  GateUp<W, X><<<grid, kWarpsOfExperts * kWarp, 0, stream>>>(MatricesOf(a.gate_up), x, x_scales,
                                                             routing, product);
}

template <class W, class X>
void LaunchDown(cudaStream_t stream, const MoeExpertsArgs& a, const X* product,
                const float* product_scales, const Routing& routing) {
  const dim3 grid(static_cast<unsigned>(a.ids.dim(0)), Blocks(a.down->out, kWarpsOfExperts));
  Down<W, X><<<grid, kWarpsOfExperts * kWarp, 0, stream>>>(
      MatricesOf(a.down), product, product_scales, routing, SlicesOf<BF16>(a.out));
}

struct Buffers {
  Buffers(const MoeExpertsArgs& a, Arena arena) {
    product = arena.Take<float>(a.ids.elements() * a.down->in);
    // Activations are quantised one after the other, in one place.
    Arena for_down = arena;
    if (a.gate_up->quantize_activations) {
      x = QuantizedTokensIn(arena, AsCuda(a.gate_up), a.x.dim(0));
    }
    if (a.down->quantize_activations) {
      quantized_product = QuantizedTokensIn(for_down, AsCuda(a.down), a.ids.elements());
    }
    used = std::max(arena.used(), for_down.used());
  }
  float* product;
  QuantizedTokens x, quantized_product;
  size_t used;
};

}  // namespace kernels

size_t MoeExpertsCudaWorkspace(const Stream&, const MoeExpertsArgs& a) {
  return Bf16ExpertsFit(a) ? Bf16ExpertsWorkspace(a) : kernels::Buffers(a, Arena::Measuring()).used;
}

void MoeExpertsCuda(OpContext& context, const MoeExpertsArgs& a) {
  if (a.x.dim(0) == 0) return;
  using namespace kernels;
  const cudaStream_t stream = Cuda(context).get();
  if (Bf16ExpertsFit(a)) {
    LaunchBf16Experts(a, context.workspace, stream);
    return Cuda(context).CheckLaunch("moe_experts", a.x);
  }
  const Buffers b(a, Arena(context.workspace.data(), context.workspace.size()));
  const int64_t tokens = a.x.dim(0), pairs = a.ids.elements();
  const Routing routing = {Data<int32_t>(a.ids), Data<float>(a.weights), Data<int32_t>(a.live),
                           a.ids.dim(1)};
  if (a.gate_up->quantize_activations) {
    const CudaWeight& w = AsCuda(a.gate_up);
    LaunchQuantizeRuns<BF16>(stream, w,
                             {.x = Data<BF16>(a.x),
                              .stride = a.x.stride(0),
                              .tokens = tokens,
                              .live = routing.live,
                              .out = b.x});
    LaunchGateUp<E4M3, E4M3>(stream, a, {b.x.codes, w.in}, b.x.scales, routing, b.product);
  } else {
    WithFormat(a.gate_up->format, [&](auto element) {
      LaunchGateUp<decltype(element), BF16>(stream, a, SlicesOf<const BF16>(a.x), nullptr, routing,
                                            b.product);
    });
  }
  if (a.down->quantize_activations) {
    const CudaWeight& w = AsCuda(a.down);
    LaunchQuantizeRuns<float>(stream, w,
                              {.x = b.product,
                               .stride = w.in,
                               .tokens = pairs,
                               .live = routing.live,
                               .live_factor = routing.topk,
                               .out = b.quantized_product});
    LaunchDown<E4M3, E4M3>(stream, a, b.quantized_product.codes, b.quantized_product.scales,
                           routing);
  } else {
    WithFormat(a.down->format, [&](auto element) {
      LaunchDown<decltype(element), float>(stream, a, b.product, nullptr, routing);
    });
  }
  if (!a.norm.absent()) LaunchRmsNorm(a.norm, stream);
  Cuda(context).CheckLaunch("moe_experts", a.x);
}

}  // namespace fathom
