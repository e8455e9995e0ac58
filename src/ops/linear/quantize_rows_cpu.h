// Activations as FP8 products want them.
#pragma once

#include "cpu/thread_pool.h"
#include "ops/linear/panel_product_cpu.h"
#include "ops/prepare/cpu_weight.h"
#include "tensor/buffer.h"

namespace fathom {

// The values of the E4M3 codes that QuantizeRun gives, and their scales, in work space.
struct QuantizedRows {
  QuantizedRows(Arena& arena, const CpuWeight& w, int64_t capacity);
  ActivationRows rows() const;

  TensorView values;  // F32 [runs, capacity, kScaleTile]
  TensorView scales;  // F32 [runs, capacity]
};

// Quantises `rows` rows of w.in channels, run by run: the same bits as QuantizeRun.
void QuantizeRows(ThreadPool& pool, const CpuWeight& w, const float* x, int64_t row_stride,
                  int64_t rows, const QuantizedRows& to);

}  // namespace fathom
