// Split over logit vectors.
#include "ops/adjust_logits/adjust_vector.h"
#include "ops/cpu_ops.h"

namespace fathom {

void AdjustLogitsCpu(OpContext& context, const AdjustLogitsArgs& a) {
  Pool(context).ParallelFor(Live(a.live, a.logits.dim(0)), Grain(a.logits.dim(1)),
                            [&](int64_t vector, int64_t end, int) {
                              for (; vector < end; ++vector) AdjustVector(a, vector);
                            });
}

}  // namespace fathom
