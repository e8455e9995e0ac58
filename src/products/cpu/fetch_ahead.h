// Whether kernels should ask for weights before they need them.
#pragma once

#include "products/cpu/panel_dot.h"

namespace fathom {

// How a format's runs lie, for a kernel that is to be timed.
struct RunLayout {
  int64_t bytes;        // of a run of kScaleTile channels, its scales included
  int64_t scale_bytes;  // before its codes; 0: they lie elsewhere
};

// `kernels` with ahead_is_faster as their kernels of one token, timed for some 5 ms, say. Where the
// hardware foresees what is read, asking for it takes instructions and may be slower.
DotKernels WithFetchAhead(const DotKernels& kernels, const RunLayout& run);

}  // namespace fathom
