// What the machine can do at best, measured beside the kernels that are held against it.
#pragma once

#include "cpu/thread_pool.h"

namespace fathom {

// Bytes per second that the pool's threads read together from memory far larger than caches.
double MeasureReadBandwidth(ThreadPool& pool);
// FLOPs per second of fused multiply-adds in registers, two FLOPs each, fp32.
double MeasureFmaPeak(ThreadPool& pool);

}  // namespace fathom
