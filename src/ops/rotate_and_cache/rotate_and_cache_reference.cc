#include "ops/reference_ops.h"
#include "ops/rotate_and_cache/compose_rotate_and_cache.h"

namespace fathom {

void RotateAndCacheReference(OpContext& context, const RotateAndCacheArgs& a) {
  ComposeRotateAndCache(context, a, {RmsNormReference}, {RopeReference}, {CacheWriteReference});
}

}  // namespace fathom
