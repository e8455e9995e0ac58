#include "ops/cpu_ops.h"
#include "ops/rotate_and_cache/compose_rotate_and_cache.h"

namespace fathom {

void RotateAndCacheCpu(OpContext& context, const RotateAndCacheArgs& a) {
  ComposeRotateAndCache(context, a, {RmsNormCpu}, {RopeCpu}, {CacheWriteCpu});
}

}  // namespace fathom
