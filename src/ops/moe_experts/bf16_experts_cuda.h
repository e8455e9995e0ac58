// Experts with BF16 weights by tensor cores, of any GPU from sm_80 on or of Hopper: pairs (token,
// chosen expert) sorted by expert, a grouped product with SiLU behind it, a second one, and the sum
// over each token's experts.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "ops/ops.h"

namespace fathom {

// Whether both matrices are BF16 and suit it; decided by the weights alone.
bool Bf16ExpertsFit(const MoeExpertsArgs& args);
size_t Bf16ExpertsWorkspace(const MoeExpertsArgs& args);
// REQUIRES: Bf16ExpertsFit.
void LaunchBf16Experts(const MoeExpertsArgs& args, std::span<std::byte> workspace,
                       cudaStream_t stream);
// The same by Hopper's kernels, where layouts suit them.
void LaunchBf16ExpertsOnHopper(const MoeExpertsArgs& args, std::span<std::byte> workspace,
                               cudaStream_t stream);

}  // namespace fathom
