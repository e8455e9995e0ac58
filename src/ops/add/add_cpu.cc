// Residual additions.
//   formula:       sum += x
//   data mapping:  a thread takes tokens
//   bytes, FLOPs:  reads 8 and writes 4 bytes a channel; 1 FLOP
//   accumulator:   none
//   expected time: [1, 7168]: under a microsecond on one core; not measured
#include "ops/cpu_ops.h"

namespace fathom {

void AddCpu(OpContext& context, const AddArgs& a) {
  const int64_t width = a.x.dim(1);
  Pool(context).ParallelFor(Live(a.live, a.x.dim(0)), Grain(width / 4),
                            [&](int64_t begin, int64_t end, int) {
                              const float* x = a.x.As<float>();
                              float* sum = a.sum.As<float>();
                              for (int64_t i = begin * width; i < end * width; ++i) sum[i] += x[i];
                            });
}

}  // namespace fathom
