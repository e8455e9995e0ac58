// Loops of Hopper's matrix instruction, for MeasureCudaPeaks().
#pragma once

#include <cuda_runtime_api.h>

namespace fathom {

constexpr int kWgmmaPeakBytes = 40960;  // of random operands: BF16 or E4M3
constexpr int kWgmmaPeakThreads = 256;  // a block; one block for each multiprocessor
// Operations of a block, two to a multiply-add.
constexpr double kWgmmaBf16Operations = 4096 * 2.0 * (2 * 64 * 256 * 64);
constexpr double kWgmmaFp8Operations = 1024 * 2.0 * (128 * 128 * 32 * 32);

// data: kWgmmaPeakBytes; sink: F32 [blocks, threads]. Compute capability 9.0 only.
void LaunchWgmmaBf16Peak(const void* data, float* sink, int blocks, cudaStream_t stream);
void LaunchWgmmaFp8Peak(const void* data, float* sink, int blocks, cudaStream_t stream);

}  // namespace fathom
