// Checks refuse what the contract excludes, by name, and admit shapes without memory.
#include "cpu/cpu_device.h"
#include "ops/op_runner.h"
#include "ops/test_pages.h"
#include "ops/test_slots.h"
#include "ops/test_weights.h"

namespace fathom {
namespace {

// A view without memory: only shapes count.
TensorView View(DType dtype, std::initializer_list<int64_t> shape) {
  return TensorView(nullptr, dtype, shape);
}
const TensorView kLive = View(DType::kI32, {1});

TEST(ContractDeathTest, TypesAndShapes) {
  const SiluMulArgs good = {
      .gate_up = View(DType::kF32, {4, 16}), .live = kLive, .out = View(DType::kF32, {4, 8})};
  Check(good);
  SiluMulArgs args = good;
  args.gate_up = View(DType::kBF16, {4, 16});
  EXPECT_DEATH(Check(args), "silu_mul: gate_up is BF16 \\[4, 16\\], not F32 \\[4, 16\\]");
  args = good;
  args.gate_up = View(DType::kF32, {5, 16});
  EXPECT_DEATH(Check(args), "silu_mul: gate_up is F32 \\[5, 16\\], not F32 \\[4, 16\\]");
  args = good;
  args.gate_up = TensorView();
  EXPECT_DEATH(Check(args), "silu_mul: gate_up is absent");
  args = good;
  args.out = View(DType::kI32, {4, 8});
  EXPECT_DEATH(Check(args), "silu_mul: out is I32");
  args = good;
  args.live = View(DType::kI32, {2});
  EXPECT_DEATH(Check(args), "silu_mul: live is I32 \\[2\\]");
  args = good;
  args.gate_up = View(DType::kF32, {4, 17}).Slice(1, 0, 16);
  EXPECT_DEATH(Check(args), "silu_mul: gate_up must be contiguous");
}

// Whatever fails while an op runs, or later in its step, names it.
TEST(ContractDeathTest, FailuresNameOpShapeAndStep) {
  CpuDevice device(1);
  Ops ops = ReferenceOps(Fp8Activations::kExact);
  OpRunner run(ops, device);
  run.Allocate();
  const TestTensor gate_up(DType::kF32, {4, 16}), out(DType::kF32, {4, 8}), live = Live(4);
  const SiluMulArgs args = {.gate_up = gate_up, .live = live, .out = out};
  current_activity.step = 7;
  run(ops.silu_mul, args);
  EXPECT_DEATH(CHECK(false), "CHECK failed: false \\(in step 7, after op silu_mul\\)");
  ops.silu_mul.run = [](OpContext&, const SiluMulArgs&) { CHECK(false, "broken"); };
  EXPECT_DEATH(run(ops.silu_mul, args), "broken \\(in step 7, op silu_mul of F32 \\[4, 16\\]\\)");
  current_activity = {};
}

TEST(ContractDeathTest, StridedTokensNeedContiguousChannels) {
  const TestPages pages(DType::kF32, 1, 2, 8, 4), odd(DType::kF32, 1, 2, 8, 3);
  RotateAndCacheArgs args = {.kv_a = View(DType::kF32, {4, 12}),
                             .latent_norm = View(DType::kF32, {8}),
                             .q_rope = View(DType::kF32, {4, 2, 12}).Slice(2, 8, 12),
                             .cos_sin = View(DType::kF32, {9, 2, 2}),
                             .tokens = {.slots = View(DType::kI32, {4}),
                                        .positions = View(DType::kI32, {4}),
                                        .page_table = pages.table(),
                                        .live = kLive},
                             .pages = pages.pages()};
  Check(args);
  args.q_rope = TensorView(nullptr, DType::kF32, {4, 2, 4}, {16, 8, 2});
  EXPECT_DEATH(Check(args), "rotate_and_cache: q_rope: the innermost stride is 2");
  args.pages = odd.pages();
  EXPECT_DEATH(Check(args), "rotate_and_cache: 3 channels to rotate");
}

TEST(ContractDeathTest, Weights) {
  const TestBackend b = Oracle();
  const TestMatrix m(DType::kF8E4M3, 8, 16, 1);
  const auto fp8 = Pack(b, {{m.weight}}), two = Pack(b, {{m.weight}, {m.weight}});
  LinearArgs linear = {.x = View(DType::kF32, {4, 16}),
                       .weight = fp8.get(),
                       .live = kLive,
                       .out = View(DType::kF32, {4, 8})};
  Check(linear);
  linear.weight = two.get();
  EXPECT_DEATH(Check(linear), "linear: 2 matrices");
  linear.weight = nullptr;
  EXPECT_DEATH(Check(linear), "linear: weight is missing");
  const HeadLinearArgs head_linear = {.x = View(DType::kF32, {4, 1, 16}),
                                      .weight = fp8.get(),
                                      .live = kLive,
                                      .out = View(DType::kF32, {4, 1, 8})};
  EXPECT_DEATH(Check(head_linear),
               "head_linear: the weight must be packed with `exact_activations`");
  const MoeExpertsArgs moe = {.x = View(DType::kF32, {4, 16}),
                              .ids = View(DType::kI32, {4, 2}),
                              .weights = View(DType::kF32, {4, 2}),
                              .gate_up = two.get(),
                              .down = two.get(),
                              .live = kLive,
                              .out = View(DType::kF32, {4, 8})};
  EXPECT_DEATH(Check(moe), "moe_experts: gate_up is 2 x \\[8, 16\\], down is 2 x \\[8, 16\\]");
}

TEST(ContractDeathTest, ValuesBehindAttention) {
  const TestBackend b = Oracle();
  const TestMatrix m(DType::kBF16, 8, 32, 1);
  const auto w_uv = Pack(b, {{m.weight}, {m.weight}}, {.exact_activations = true});
  const TestPages pages(DType::kF32, 1, 1, 32, 16);
  const TestTokens tokens(pages, {0}, {0}, 3);
  const TestTensor out(DType::kF32, {3, 2, 32}), other(DType::kF32, {3, 2, 32});
  AttendAbsorbedArgs args = {.q_latent = View(DType::kF32, {3, 2, 32}),
                             .q_rope = View(DType::kF32, {3, 2, 16}),
                             .tokens = tokens.map(),
                             .pages = pages.pages(),
                             .out = out,
                             .values = {.x = out,
                                        .weight = w_uv.get(),
                                        .live = tokens.map().live,
                                        .out = View(DType::kF32, {3, 2, 8})}};
  Check(args);
  args.values.x = other;
  EXPECT_DEATH(Check(args), "attend_absorbed: values of something else than out");
  args.values.x = out.view().Slice(0, 0, 2);
  args.values.out = View(DType::kF32, {2, 2, 8});
  EXPECT_DEATH(Check(args), "attend_absorbed: values.x is F32 \\[2, 2, 32\\]");
}

TEST(ContractDeathTest, SourcesOfWeights) {
  const TestMatrix fp8(DType::kF8E4M3, 8, 16, 1), bf16(DType::kBF16, 8, 24, 2);
  WeightTensor bare = fp8.weight;
  bare.scales = {};
  for (const TestBackend& b : Backends({Fp8Activations::kQuantized})) {
    EXPECT_DEATH(Pack(b, {}), "pack: no matrix");
    EXPECT_DEATH(Pack(b, {{fp8.weight, bf16.weight}}), "pack: a part BF16 \\[8, 24\\] beside");
    EXPECT_DEATH(Pack(b, {{fp8.weight}, {fp8.weight, fp8.weight}}), "matrices of 1 and 2 parts");
    EXPECT_DEATH(Pack(b, {{bare}}), "pack: a part F8_E4M3 \\[8, 16\\] with scales absent");
  }
}

TEST(ContractDeathTest, Routing) {
  RouteArgs args = {.x = View(DType::kF32, {4, 16}),
                    .gate = View(DType::kF32, {12, 16}),
                    .n_group = 3,
                    .topk_group = 1,
                    .live = kLive,
                    .ids = View(DType::kI32, {4, 4}),
                    .weights = View(DType::kF32, {4, 4})};
  Check(args);
  args.norm = {.x = View(DType::kF32, {4, 17}),
               .weight = View(DType::kF32, {17}),
               .live = kLive,
               .out = View(DType::kF32, {4, 17})};
  EXPECT_DEATH(Check(args), "route: norm.out is F32 \\[4, 17\\], not F32 \\[4, 16\\]");
  args.norm = {};
  args.n_group = 5;
  EXPECT_DEATH(Check(args), "route: 12 experts in 5 groups");
  args.n_group = 4;
  EXPECT_DEATH(Check(args), "route: the best 4 of 3 experts");
  args.topk_group = 5;
  EXPECT_DEATH(Check(args), "route: 5 of 4 groups");
}

TEST(ContractDeathTest, Context) {
  const TestPages pages(DType::kF32, 1, 2, 8, 4);
  std::vector<ContextPiece> pieces = {{.begin = 28, .count = 100}};
  GatherContextArgs args = {.pages = pages.pages(),
                            .page_table = pages.table(),
                            .pieces = pieces,
                            .latent = View(DType::kF32, {100, 8}),
                            .rope = View(DType::kF32, {100, 4})};
  Check(args);
  pieces[0].begin = 29;
  EXPECT_DEATH(Check(args), "positions \\[29, 129\\) lie beyond a table of 2 pages");
  pieces[0] = {.slot = 1, .count = 100};
  EXPECT_DEATH(Check(args), "gather_context: slot 1 of 1");
  pieces[0] = {.count = 99};
  EXPECT_DEATH(Check(args), "pieces of 99 positions for 100");
  pieces[0] = {.count = 100, .at = 1};
  EXPECT_DEATH(Check(args), "100 positions from 0 stand at 1, not at 0");
  pieces.assign(kMaxContextPieces + 1, {});
  args.pieces = pieces;
  EXPECT_DEATH(Check(args), "65 pieces of context, at most 64");
}

TEST(ContractDeathTest, PiecesOfExpandedAttention) {
  std::vector<ContextPiece> pieces = {{.count = 3, .tokens = 2},
                                      {.count = 2, .at = 3, .token_begin = 2, .tokens = 4}};
  const AttendExpandedArgs args = {.q = View(DType::kF32, {6, 2, 12}),
                                   .positions = View(DType::kI32, {6}),
                                   .kv = View(DType::kF32, {5, 2, 16}),
                                   .rope = View(DType::kF32, {5, 4}),
                                   .pieces = pieces,
                                   .out = View(DType::kF32, {6, 2, 8}),
                                   .lse = View(DType::kF32, {6, 2})};
  Check(args);
  pieces[1].tokens = 5;
  EXPECT_DEATH(Check(args), "pieces of 7 tokens, 6 there");
  pieces[1] = {.count = 2, .at = 3, .token_begin = 1, .tokens = 4};
  EXPECT_DEATH(Check(args), "a piece of 4 tokens from 1 on, after 2");
  pieces.pop_back();
  AttendExpandedArgs one = args;
  one.pieces = pieces;
  EXPECT_DEATH(Check(one), "pieces of 3 positions for 5");
}

TEST(ContractDeathTest, FP8LatentsHaveScales) {
  const TestPages pages(DType::kF8E4M3, 1, 2, 8, 4);
  const ContextPiece piece{.count = 9};
  GatherContextArgs args = {.pages = pages.pages(),
                            .page_table = pages.table(),
                            .pieces = {&piece, 1},
                            .latent = View(DType::kF32, {9, 8}),
                            .rope = View(DType::kF32, {9, 4})};
  Check(args);
  args.pages.scales = TensorView();
  EXPECT_DEATH(Check(args), "F8_E4M3 latents with scales absent");
}

TEST(ContractDeathTest, TheReferenceRefusesIndicesOutOfRange) {
  const TestBackend b = Oracle();
  const TestTensor table(DType::kF32, {3, 2}, {1, 2, 3, 4, 5, 6});
  TestTensor out(DType::kF32, {1, 2});
  for (const int32_t id : {-1, 3}) {
    const TestTensor ids = Ints({1}, {id}), live = Live(1);
    EXPECT_DEATH(RunOp(b, &Ops::embed, {.ids = ids, .table = table, .live = live, .out = out}),
                 "of a vocabulary of 3");
  }
}

}  // namespace
}  // namespace fathom
