// Another type for numbers, split over tokens.
//   formula:       out = x
//   data mapping:  a thread takes tokens
//   bytes, FLOPs:  6 bytes a number; no arithmetic
//   accumulator:   none
//   expected time: that of its bytes; not measured
#include "ops/convert/convert_tokens.h"
#include "ops/cpu_ops.h"

namespace fathom {

void ConvertCpu(OpContext& context, const ConvertArgs& a) {
  Pool(context).ParallelFor(Live(a.live, a.x.dim(0)), Grain(a.x.dim(1)),
                            [&](int64_t begin, int64_t end, int) { ConvertTokens(a, begin, end); });
}

}  // namespace fathom
