// Absorbed attention by the Hopper kernel where its sizes fit, else by the portable one; the choice
// depends on the model alone.
#include <algorithm>

#include "ops/attend_absorbed/mla_decode_cuda.h"
#include "ops/head_linear_cuda.h"
#include "ops/hopper_ops.h"

namespace fathom {
namespace {

bool Fits(const AttendAbsorbedArgs& a) {
  const TensorView& q_rope = a.q_rope;
  return a.pages.rope.dtype() == DType::kBF16 && a.pages.latent.dim(2) == kMlaLatent &&
         a.pages.rope.dim(2) == kMlaRope && a.scale > 0 && q_rope.stride(0) % 8 == 0 &&
         q_rope.stride(1) % 8 == 0 &&
         (q_rope.dim(1) <= kMlaNarrowHeads || q_rope.stride(0) == q_rope.dim(1) * q_rope.stride(1));
}

MlaDecodeParams ParamsOf(const AttendAbsorbedArgs& a) {
  const auto heads = static_cast<int32_t>(a.q_latent.dim(1));
  const auto max_pages = static_cast<int32_t>(a.tokens.page_table.dim(1));
  const auto tokens = static_cast<int32_t>(a.q_latent.dim(0));
  const bool fp8 = a.pages.scales.data() != nullptr;
  return {.q_latent = a.q_latent.data(),
          .q_rope = a.q_rope.data(),
          .q_rope_stride = a.q_rope.stride(1),
          .q_rope_token_stride = a.q_rope.stride(0),
          .latent = a.pages.latent.data(),
          .scales = static_cast<const float*>(a.pages.scales.data()),
          .rope = a.pages.rope.data(),
          .pages = a.pages.latent.dim(0),
          .page_bytes = a.pages.rope.stride(0) * static_cast<int64_t>(sizeof(BF16)),
          .slots = static_cast<const int32_t*>(a.tokens.slots.data()),
          .positions = static_cast<const int32_t*>(a.tokens.positions.data()),
          .page_table = static_cast<const int32_t*>(a.tokens.page_table.data()),
          .live = static_cast<const int32_t*>(a.tokens.live.data()),
          .max_pages = max_pages,
          .tokens = tokens,
          .heads = heads,
          .scale = a.scale,
          .split = a.step_rows == 0
                       ? MlaDecodeSplitOf(heads, max_pages, fp8)
                       : MlaDecodeSplitOfStep(tokens, static_cast<int32_t>(a.step_rows), heads,
                                              max_pages, fp8),
          .out = a.out.data()};
}

}  // namespace

size_t AttendAbsorbedHopperWorkspace(const Stream&, const AttendAbsorbedArgs& a) {
  if (!Fits(a)) return 0;
  const MlaDecodeParams p = ParamsOf(a);
  const auto bytes = [&](const MlaDecodeSplit& split) {
    return MlaDecodeWorkspace(p.tokens, p.heads, p.max_pages, split);
  };
  const size_t invariant = bytes(MlaDecodeSplitOf(p.heads, p.max_pages, p.scales != nullptr));
  // A smaller step may be split where this one is not.
  return a.step_rows == 0 ? invariant : std::max(invariant, bytes({.parts = 1}));
}

void AttendAbsorbedHopper(OpContext& context, const AttendAbsorbedArgs& a) {
  if (a.q_latent.elements() == 0) return;
  const HeadLinearArgs& values = a.values;
  MlaDecodeParams params;
  Bf16ProductParams product;
  if (Fits(a)) {
    params = ParamsOf(a);
    params.workspace = context.workspace;
    if (values.weight != nullptr && values.quantized.codes.absent() && Bf16HeadLinearFits(values)) {
      product = Bf16ProductOf(values);
      if (MlaDecodeMultiplies(params, product)) params.values = &product;
    }
    LaunchMlaDecode(params, Cuda(context).get());
    Cuda(context).CheckLaunch("attend_absorbed", a.q_latent);
  } else {
    AttendAbsorbedArgs attention = a;
    attention.values = {};
    AttendAbsorbedCuda(context, attention);
  }
  if (values.weight != nullptr && params.values == nullptr) HeadLinearHopper(context, values);
}

}  // namespace fathom
