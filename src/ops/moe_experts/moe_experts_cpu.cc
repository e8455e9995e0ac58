// The chosen experts of each token.
//   formula:       out[t] = sum over j of weight[t, j] down[e](silu(gate[e] x[t]) * up[e] x[t])
//   data mapping:  pairs (token, j) are sorted by expert; a thread takes panels of one expert
//                  with all of its tokens (products/cpu/panel_product.cc)
//   bytes, FLOPs:  the weights of every expert chosen, once per kTokenChunk tokens;
//                  6 x hidden x inter FLOPs per pair
//   accumulator:   fp32; products as in linear, then over j in order
//   expected time: one token of 8 FP8 experts [2048, 7168]: 352 MB at read bandwidth; not measured
#include <algorithm>
#include <cstring>

#include "ops/cpu_ops.h"
#include "products/cpu/pack_tokens.h"
#include "products/cpu/panel_product.h"

namespace fathom {
namespace {

// The work space of a chunk of tokens. Pairs are numbered in order of their expert.
struct Buffers {
  Buffers(Arena& arena, const MoeExpertsArgs& a)
      : tokens(std::min(kTokenChunk, a.x.dim(0))),
        pairs(tokens * a.ids.dim(1)),
        begin(arena.Allocate(DType::kI32, {a.gate_up->count + 1})),
        active(arena.Allocate(DType::kI32, {a.gate_up->count})),
        token(arena.Allocate(DType::kI32, {pairs})),
        place(arena.Allocate(DType::kI32, {pairs})),
        product(arena.Allocate(DType::kF32, {pairs, a.down->in})),
        y(arena.Allocate(DType::kF32, {pairs, a.down->out})),
        x_runs(arena, AsCpu(a.gate_up), tokens),
        product_runs(arena, AsCpu(a.down), pairs) {}

  int64_t tokens, pairs;
  TensorView begin;   // [experts + 1]: the first pair of each expert
  TensorView active;  // [experts]: those that have pairs
  TensorView token;   // [pairs]
  TensorView place;   // [tokens, topk]: the number of pair (t, j)
  TensorView product, y;
  PackedTokens x_runs, product_runs;
};

// Numbers the pairs of n tokens; returns how many experts are active.
int64_t SortByExpert(const int32_t* ids, int64_t n, int64_t topk, int64_t experts,
                     const Buffers& b) {
  int32_t* begin = b.begin.As<int32_t>();
  std::fill_n(begin, experts + 1, 0);
  for (int64_t i = 0; i < n * topk; ++i) {
    CHECK(ids[i] >= 0 && ids[i] < experts, "moe_experts: expert {} of {}", ids[i], experts);
    ++begin[ids[i] + 1];
  }
  for (int64_t e = 0; e < experts; ++e) begin[e + 1] += begin[e];
  for (int64_t i = 0; i < n * topk; ++i) {
    const int32_t place = begin[ids[i]]++;  // is the end of the expert's pairs once all are placed
    b.place.As<int32_t>()[i] = place;
    b.token.As<int32_t>()[place] = static_cast<int32_t>(i / topk);
  }
  for (int64_t e = experts; e > 0; --e) begin[e] = begin[e - 1];
  begin[0] = 0;
  int64_t active = 0;
  for (int64_t e = 0; e < experts; ++e) {
    if (begin[e + 1] > begin[e]) b.active.As<int32_t>()[active++] = static_cast<int32_t>(e);
  }
  return active;
}

// A product with the weights of each pair's expert.
struct ExpertProduct {
  decltype(MultiplyPanels)& multiply;
  const CpuWeight& w;
  int64_t panels;  // that `multiply` walks
  TokenActivations x;
  const int32_t* token_of;  // [pairs]: which of x a pair reads; null: pair i reads x[i]
  const TensorView& out;    // [pairs, ..]
};

void MultiplyByExpert(ThreadPool& pool, const Buffers& b, int64_t active, const ExpertProduct& p) {
  const int32_t* begin = b.begin.As<int32_t>();
  const int64_t average = begin[p.w.count] / std::max<int64_t>(active, 1);
  const int64_t items = active * p.panels;
  pool.ParallelFor(
      items, PanelGrain(p.w, average, items, pool.threads()), [&](int64_t i, int64_t end, int) {
        while (i < end) {
          const int64_t panel = i % p.panels, stop = std::min(p.panels, panel + end - i);
          const int32_t expert = b.active.As<int32_t>()[i / p.panels];
          const int64_t first = begin[expert], tokens = begin[expert + 1] - first;
          TokenActivations its_x = p.x;
          if (p.token_of == nullptr) {
            its_x = p.x.From(first);
          } else {
            its_x.index = p.token_of + first;
          }
          p.multiply({p.w, expert, panel, stop}, its_x, tokens,
                     TokenOutputs{p.out.As<float>(), p.out.stride(0)}.From(
                         first, p.w.OutsBetween(0, panel)));
          i += stop - panel;
        }
      });
}

void Combine(ThreadPool& pool, const MoeExpertsArgs& a, const Buffers& b, int64_t first,
             int64_t n) {
  const int64_t hidden = a.down->out, topk = a.ids.dim(1);
  pool.ParallelFor(n, Grain(hidden * topk / 4), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* out = a.out.As<float>(first + t);
      std::fill_n(out, hidden, 0.0f);
      for (int64_t j = 0; j < topk; ++j) {
        const float weight = a.weights.As<float>(first + t)[j];
        const float* y = b.y.As<float>(b.place.As<int32_t>()[t * topk + j]);
        for (int64_t i = 0; i < hidden; ++i) out[i] += weight * y[i];
      }
    }
  });
}

void RunChunk(OpContext& context, const MoeExpertsArgs& a, int64_t first, int64_t n) {
  Arena arena(context.workspace.data(), context.workspace.size());
  const Buffers b(arena, a);
  ThreadPool& pool = Pool(context);
  const CpuWeight &gate_up = AsCpu(a.gate_up), &down = AsCpu(a.down);
  const int64_t inter = down.in, pairs = n * a.ids.dim(1);
  const int64_t active = SortByExpert(a.ids.As<int32_t>(first), n, a.ids.dim(1), gate_up.count, b);

  const TokenActivations x = b.x_runs.Pack(pool, gate_up, {a.x.As<float>(first), a.x.stride(0)}, n);
  MultiplyByExpert(pool, b, active,
                   {.multiply = MultiplyGated,
                    .w = gate_up,
                    .panels = gate_up.panel_count() / 2,
                    .x = x,
                    .token_of = b.token.As<int32_t>(),
                    .out = b.product});
  const TokenActivations product =
      b.product_runs.Pack(pool, down, {b.product.As<float>(), inter}, pairs);
  MultiplyByExpert(pool, b, active,
                   {.multiply = MultiplyPanels,
                    .w = down,
                    .panels = down.panel_count(),
                    .x = product,
                    .token_of = nullptr,
                    .out = b.y});
  Combine(pool, a, b, first, n);
}

}  // namespace

size_t MoeExpertsCpuWorkspace(const Stream&, const MoeExpertsArgs& a) {
  Arena arena = Arena::Measuring();
  Buffers(arena, a);
  return arena.used();
}

void MoeExpertsCpu(OpContext& context, const MoeExpertsArgs& a) {
  const int64_t tokens = Live(a.live, a.x.dim(0));
  for (int64_t first = 0; first < tokens; first += kTokenChunk) {
    RunChunk(context, a, first, std::min(kTokenChunk, tokens - first));
  }
  if (!a.norm.absent()) RmsNormCpu(context, a.norm);
}

}  // namespace fathom
