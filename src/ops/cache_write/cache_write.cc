#include "ops/check.h"

namespace fathom {

void Check(const CacheWriteArgs& a) {
  CheckPages("cache_write: pages", a.pages);
  CheckActivation("cache_write: latent", a.latent, 2);
  const int64_t tokens = a.latent.dim(0);
  CheckStrided("cache_write: latent", a.latent, a.latent.dtype(), {tokens, a.pages.latent.dim(2)});
  CheckStrided("cache_write: rope", a.rope, a.latent.dtype(), {tokens, a.pages.rope.dim(2)});
  CheckTokenMap("cache_write: tokens", a.tokens, tokens);
}

}  // namespace fathom
