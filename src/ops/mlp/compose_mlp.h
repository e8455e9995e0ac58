// The MLP as the composition that defines it, for tables without a kernel of its own.
#pragma once

#include "ops/ops.h"

namespace fathom {

void ComposeMlp(OpContext& context, const MlpArgs& args, const Op<LinearArgs>& linear,
                const Op<SiluMulArgs>& silu_mul);
size_t ComposedMlpWorkspace(const Stream& stream, const MlpArgs& args,
                            const Op<LinearArgs>& linear);

}  // namespace fathom
