#include "ops/check.h"

namespace fathom {

void Check(const RotateAndCacheArgs& a) {
  CheckPages("rotate_and_cache: pages", a.pages);
  CheckActivation("rotate_and_cache: kv_a", a.kv_a, 2);
  CHECK(a.q_rope.rank() == 3 && a.cos_sin.rank() == 3,
        "rotate_and_cache: q_rope is {}, cos_sin is {}", a.q_rope.ToString(), a.cos_sin.ToString());
  const DType act = a.kv_a.dtype();
  const int64_t tokens = a.kv_a.dim(0);
  const int64_t latent = a.pages.latent.dim(2), rope = a.pages.rope.dim(2);
  CHECK(rope % 2 == 0, "rotate_and_cache: {} channels to rotate", rope);
  CheckStrided("rotate_and_cache: kv_a", a.kv_a, act, {tokens, latent + rope});
  CheckTensor("rotate_and_cache: latent_norm", a.latent_norm, DType::kF32, {latent});
  CheckStrided("rotate_and_cache: q_rope", a.q_rope, act, {tokens, a.q_rope.dim(1), rope});
  CheckTensor("rotate_and_cache: cos_sin", a.cos_sin, DType::kF32, {a.cos_sin.dim(0), 2, rope / 2});
  CheckTokenMap("rotate_and_cache: tokens", a.tokens, tokens);
}

}  // namespace fathom
