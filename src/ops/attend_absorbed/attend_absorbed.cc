#include "ops/check.h"

namespace fathom {

void Check(const AttendAbsorbedArgs& a) {
  CheckPages("attend_absorbed: pages", a.pages);
  CheckActivation("attend_absorbed: q_latent", a.q_latent, 3);
  const DType act = a.q_latent.dtype();
  const int64_t tokens = a.q_latent.dim(0), heads = a.q_latent.dim(1);
  const int64_t latent = a.pages.latent.dim(2), rope = a.pages.rope.dim(2);
  CheckTensor("attend_absorbed: q_latent", a.q_latent, act, {tokens, heads, latent});
  CheckStrided("attend_absorbed: q_rope", a.q_rope, act, {tokens, heads, rope});
  CheckTensor("attend_absorbed: out", a.out, act, {tokens, heads, latent});
  CheckTokenMap("attend_absorbed: tokens", a.tokens, tokens);
  if (a.values.weight == nullptr) return;
  Check(a.values);
  CheckTensor("attend_absorbed: values.x", a.values.x, act, {tokens, heads, latent});
  CHECK(a.values.x.data() == a.out.data() && a.values.live.data() == a.tokens.live.data(),
        "attend_absorbed: values of something else than out");
}

}  // namespace fathom
