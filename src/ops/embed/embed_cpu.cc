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

static void EmbedToken(const EmbedArgs& a, int64_t t) {
  const int64_t hidden = a.out.dim(1), vocab = std::max(a.vocab, a.table.dim(0));
  const int64_t id = a.ids.As<int32_t>()[t], at = id - a.first;
  CHECK(id >= 0 && id < vocab, "embed: token {} of a vocabulary of {}", id, vocab);
  float* out = a.out.As<float>(t);
  if (at < 0 || at >= a.table.dim(0)) {
    std::fill_n(out, hidden, 0.0f);
    return;
  }
  switch (a.table.dtype()) {
    case DType::kBF16: return Widen(a.table.As<BF16>(at), hidden, out);
    case DType::kF16: return Widen(a.table.As<F16>(at), hidden, out);
    default: std::copy_n(a.table.As<float>(at), hidden, out);
  }
}

void EmbedCpu(OpContext& context, const EmbedArgs& a) {
  Pool(context).ParallelFor(Live(a.live, a.out.dim(0)), Grain(a.out.dim(1)),
                            [&](int64_t begin, int64_t end, int) {
                              for (int64_t t = begin; t < end; ++t) EmbedToken(a, t);
                            });
}

}  // namespace fathom
