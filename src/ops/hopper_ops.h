// The functions of CudaHopperOps that are not those of CudaPortableOps: they take Hopper's kernels
// (sm_90a) where sizes and layouts fit, and else call the portable function.
#pragma once

#include "ops/cuda_ops.h"

namespace fathom {

void LinearHopper(OpContext&, const LinearArgs&);
size_t LinearHopperWorkspace(const Stream&, const LinearArgs&);
bool LinearHopperReadsCopy(const PackedWeight&, int64_t tokens);
void HeadLinearHopper(OpContext&, const HeadLinearArgs&);
void MlpHopper(OpContext&, const MlpArgs&);
size_t MlpHopperWorkspace(const Stream&, const MlpArgs&);
void AttendAbsorbedHopper(OpContext&, const AttendAbsorbedArgs&);
size_t AttendAbsorbedHopperWorkspace(const Stream&, const AttendAbsorbedArgs&);
void AttendExpandedHopper(OpContext&, const AttendExpandedArgs&);
void MoeExpertsHopper(OpContext&, const MoeExpertsArgs&);
size_t MoeExpertsHopperWorkspace(const Stream&, const MoeExpertsArgs&);

}  // namespace fathom
