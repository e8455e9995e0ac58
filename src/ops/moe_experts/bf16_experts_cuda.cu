// Experts in BF16 on CUDA, kernel by kernel.
//   formula:       out[t] = sum over j of weights[t, j] * down[e](silu(gate[e] x) * up[e] x)
//   data mapping:  sort (moe_experts/grouped_gemm_cuda.h; of few pairs none), the two products
//                  (products/cuda/bf16_product.h), the sum
//   bytes, FLOPs:  every chosen expert's weights once per 8 to 64 of its pairs; 6 FLOP a weight
//                  position and pair
//   accumulator:   fp32; the product and each expert's output are rounded to BF16
//   expected time: V2-Lite, 1 token: 104 MB at 70 % of the bandwidth, 31 us; not measured
#include "cuda/kernels.cuh"
#include "ops/moe_experts/bf16_experts_cuda.h"
#include "ops/moe_experts/grouped_gemm_cuda.h"
#include "products/cuda/cuda_weight.h"
#include "products/cuda/few_pairs.cuh"
#include "products/hopper/bf16_gemm.h"
#include "products/hopper/bf16_product.h"
#include "tensor/buffer.h"

namespace fathom {
namespace kernels {

// Of more, blocks of the portable kernel for which no expert is left take longer than sorting.
constexpr int64_t kPortableUnsortedPairs = 32;
static_assert(kPortableUnsortedPairs <= FewPairs::kMost);

// token_of[place of a pair] = its token.
__global__ void TokensOfPlaces(const int32_t* places, const int32_t* live, int topk,
                               int32_t* token_of) {
  AfterPriorKernels();
  const int64_t pair = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (pair < int64_t{*live} * topk) token_of[places[pair]] = static_cast<int32_t>(pair / topk);
}

struct Buffers {
  Buffers(const MoeExpertsArgs& a, Arena arena) {
    const int64_t pairs = a.ids.elements(), experts = a.down->count;
    counts = arena.Take<int32_t>(experts);
    begins = arena.Take<int32_t>(experts);
    places = arena.Take<int32_t>(pairs);
    token_of = arena.Take<int32_t>(pairs);
    product = arena.Take<BF16>(pairs * a.down->in);
    // First what each pair reads of x, if it is gathered; then what the experts make of it.
    y = arena.Take<BF16>(pairs * std::max(a.down->out, a.gate_up->in));
    used = arena.used();
  }
  size_t used;
  int32_t *counts, *begins, *places, *token_of;
  BF16 *product, *y;
};

static const BF16* Values(const PackedWeight* weight) {
  return reinterpret_cast<const BF16*>(AsCuda(weight).values->data());
}

// Of few tokens: nothing is sorted, and a pair's place is the pair. The same bits.
static void LaunchFewTokens(const MoeExpertsArgs& a, std::span<std::byte> workspace,
                            Bf16ProductLaunch& launch, cudaStream_t stream) {
  const Buffers b(a, Arena(workspace.data(), workspace.size()));
  Bf16ProductParams product = {.x = Data<BF16>(a.x),
                               .x_stride = a.x.stride(0),
                               .w = Values(a.gate_up),
                               .count = a.down->count,
                               .out = a.gate_up->out,
                               .in = a.gate_up->in,
                               .live = Data<int32_t>(a.live),
                               .tokens = a.x.dim(0),
                               .ids = Data<int32_t>(a.ids),
                               .topk = a.ids.dim(1),
                               .shared = a.shared,
                               .y = b.product,
                               .y_stride = a.down->in,
                               .silu = true};
  launch(product, stream);
  product.x = b.product, product.x_stride = a.down->in, product.x_of_pairs = true;
  product.w = Values(a.down), product.out = a.down->out, product.in = a.down->in;
  product.ids_early = true, product.silu = false;
  product.y = b.y, product.y_stride = a.down->out;
  launch(product, stream);
  LaunchCombine({.y = reinterpret_cast<const __nv_bfloat16*>(b.y),
                 .weights = Data<float>(a.weights),
                 .live = Data<int32_t>(a.live),
                 .tokens = a.x.dim(0),
                 .topk = static_cast<int32_t>(a.ids.dim(1)),
                 .hidden = a.down->out,
                 .out = reinterpret_cast<__nv_bfloat16*>(a.out.data())},
                a.norm, stream);
}

// Lets `gate_up` read the token of each pair, in the order of the sort: from a copy, because TMA
// reads places that follow each other, or by its number.
static void GiveTokensOfPairs(const MoeExpertsArgs& a, const Buffers& b, bool gathered,
                              Bf16ProductParams& gate_up, cudaStream_t stream) {
  const int64_t tokens = a.x.dim(0);
  const auto topk = static_cast<int32_t>(a.ids.dim(1));
  const int32_t* live = Data<int32_t>(a.live);
  if (!gathered) {
    LaunchOverlapped(TokensOfPlaces, Blocks(tokens * topk, 256), 256, 0, stream, b.places, live,
                     topk, b.token_of);
    gate_up.token_of = b.token_of;
    return;
  }
  LaunchGatherPairs({.x = reinterpret_cast<const __nv_bfloat16*>(a.x.data()),
                     .stride = a.x.stride(0),
                     .places = b.places,
                     .live = live,
                     .tokens = tokens,
                     .topk = topk,
                     .hidden = gate_up.in,
                     .x_of_pairs = reinterpret_cast<__nv_bfloat16*>(b.y)},
                    stream);
  gate_up.x = b.y;
  gate_up.x_stride = gate_up.in;
}

static void LaunchExperts(const MoeExpertsArgs& a, std::span<std::byte> workspace, bool on_hopper,
                          cudaStream_t stream) {
  const int64_t tokens = a.x.dim(0), pairs = a.ids.elements(), experts = a.down->count;
  Bf16ProductLaunch& launch = on_hopper ? LaunchBf16ProductOnHopper : LaunchBf16Product;
  const int64_t most_unsorted = on_hopper ? FewPairs::kMost : kPortableUnsortedPairs;
  if (tokens <= FewPairs::kPairs && pairs <= most_unsorted) {
    return LaunchFewTokens(a, workspace, launch, stream);
  }
  const Buffers b(a, Arena(workspace.data(), workspace.size()));
  const auto topk = static_cast<int32_t>(a.ids.dim(1));
  const int32_t* live = Data<int32_t>(a.live);
  LaunchSortPairs({.ids = Data<int32_t>(a.ids),
                   .live = live,
                   .tokens = tokens,
                   .topk = topk,
                   .experts = static_cast<int32_t>(experts),
                   .counts = b.counts,
                   .begins = b.begins,
                   .places = b.places,
                   .on_hopper = on_hopper},
                  stream);
  Bf16ProductParams gate_up = {.x = Data<BF16>(a.x),
                               .x_stride = a.x.stride(0),
                               .w = Values(a.gate_up),
                               .count = experts,
                               .out = a.gate_up->out,
                               .in = a.gate_up->in,
                               .tokens = pairs,
                               .counts = b.counts,
                               .begins = b.begins,
                               .y = b.product,
                               .y_stride = a.down->in,
                               .silu = true};
  const bool gathered = on_hopper && Bf16GemmFits(gate_up);
  GiveTokensOfPairs(a, b, gathered, gate_up, stream);
  launch(gate_up, stream);
  launch({.x = b.product,
          .x_stride = a.down->in,
          .w = Values(a.down),
          .count = experts,
          .out = a.down->out,
          .in = a.down->in,
          .tokens = pairs,
          .counts = b.counts,
          .begins = b.begins,
          .y = b.y,
          .y_stride = a.down->out,
          .counts_early = gathered},
         stream);
  LaunchCombine({.y = reinterpret_cast<const __nv_bfloat16*>(b.y),
                 .places = b.places,
                 .weights = Data<float>(a.weights),
                 .live = live,
                 .tokens = tokens,
                 .topk = topk,
                 .hidden = a.down->out,
                 .out = reinterpret_cast<__nv_bfloat16*>(a.out.data())},
                a.norm, stream);
}

}  // namespace kernels

bool Bf16ExpertsFit(const MoeExpertsArgs& a) {
  return a.gate_up->format == WeightFormat::kBF16 && a.down->format == WeightFormat::kBF16 &&
         a.gate_up->in % 8 == 0 && a.down->in % 8 == 0 && a.down->count <= kMostExperts;
}

size_t Bf16ExpertsWorkspace(const MoeExpertsArgs& a) {
  return kernels::Buffers(a, Arena::Measuring()).used;
}

void LaunchBf16Experts(const MoeExpertsArgs& a, std::span<std::byte> workspace,
                       cudaStream_t stream) {
  kernels::LaunchExperts(a, workspace, /*on_hopper=*/false, stream);
}

void LaunchBf16ExpertsOnHopper(const MoeExpertsArgs& a, std::span<std::byte> workspace,
                               cudaStream_t stream) {
  kernels::LaunchExperts(a, workspace, /*on_hopper=*/true, stream);
}

}  // namespace fathom
