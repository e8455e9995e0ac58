// Vectors of the embedding table as fp32.
//   formula:       out[t] = table[ids[t]]
//   data mapping:  a thread takes tokens
//   bytes, FLOPs:  reads 2 or 4 and writes 4 bytes a channel; none
//   accumulator:   none
//   expected time: [1, 7168]: some microseconds on one core; not measured
#include <algorithm>

#include "ops/cpu_ops.h"

namespace fathom {

template <class T>
static void Widen(const T* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToFloat(from[i]);
}

void EmbedCpu(OpContext& context, const EmbedArgs& a) {
  const int64_t hidden = a.out.dim(1);
  Pool(context).ParallelFor(Live(a.live, a.out.dim(0)), Grain(hidden),
                            [&](int64_t begin, int64_t end, int) {
                              for (int64_t t = begin; t < end; ++t) {
                                const int32_t id = a.ids.As<int32_t>()[t];
                                CHECK(id >= 0 && id < a.table.dim(0),
                                      "embed: token {} of a vocabulary of {}", id, a.table.dim(0));
                                float* out = a.out.As<float>(t);
                                switch (a.table.dtype()) {
                                  case DType::kBF16:
                                    Widen(a.table.As<BF16>(id), hidden, out);
                                    break;
                                  case DType::kF16: Widen(a.table.As<F16>(id), hidden, out); break;
                                  default: std::copy_n(a.table.As<float>(id), hidden, out);
                                }
                              }
                            });
}

}  // namespace fathom
