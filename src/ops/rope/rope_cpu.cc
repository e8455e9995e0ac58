// Rotation of interleaved pairs in place.
//   formula:       (a, b) <- (a cos - b sin, a sin + b cos)
//   data mapping:  a thread takes tokens with all their heads
//   bytes, FLOPs:  reads and writes 4 bytes a channel; 3 FLOPs
//   accumulator:   none
//   expected time: [1, 128, 64]: some microseconds on one core; not measured
#include "ops/cpu_ops.h"

namespace fathom {

static void RotateToken(const RopeArgs& a, int64_t t) {
  const int64_t half = a.x.dim(2) / 2;
  const int32_t position = a.positions.As<int32_t>()[t];
  CHECK(position >= 0 && position < a.cos_sin.dim(0), "rope: position {} of {}", position,
        a.cos_sin.dim(0));
  const float *cos = a.cos_sin.Row<float>(position), *sin = cos + half;
  for (int64_t h = 0; h < a.x.dim(1); ++h) {
    float* x = a.x.Row<float>(t) + h * a.x.stride(1);
    for (int64_t i = 0; i < half; ++i) {
      const float even = x[2 * i], odd = x[2 * i + 1];
      x[2 * i] = even * cos[i] - odd * sin[i];
      x[2 * i + 1] = even * sin[i] + odd * cos[i];
    }
  }
}

void RopeCpu(OpContext& context, const RopeArgs& a) {
  Pool(context).ParallelFor(Live(a.live, a.x.dim(0)), Grain(2 * a.x.dim(1) * a.x.dim(2)),
                            [&](int64_t begin, int64_t end, int) {
                              for (int64_t t = begin; t < end; ++t) RotateToken(a, t);
                            });
}

}  // namespace fathom
