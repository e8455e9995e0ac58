// Whether kernels should ask for weights before they need them.
#pragma once

#include "products/cpu/panel_dot.h"

namespace fathom {

// How a format's runs lie, for a kernel that is to be timed.
struct RunLayout {
  int64_t bytes;        // of a run of kScaleTile channels, its scales included
  int64_t scale_bytes;  // before its codes; 0: they lie elsewhere
};

// `kernels` with fetches_ahead set, unless their kernel of one token, timed for some milliseconds,
// is more than a twentieth slower so: where the hardware foresees what is read it may be.
DotKernels WithFetchAhead(const DotKernels& kernels, const RunLayout& run);

}  // namespace fathom
