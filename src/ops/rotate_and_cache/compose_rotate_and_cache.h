// The composition that defines rotate_and_cache, for tables without a kernel of its own.
#pragma once

#include "ops/ops.h"

namespace fathom {

// The ops must need no work space.
void ComposeRotateAndCache(OpContext& context, const RotateAndCacheArgs& args,
                           const Op<RmsNormArgs>& rms_norm, const Op<RopeArgs>& rope,
                           const Op<CacheWriteArgs>& cache_write);

}  // namespace fathom
