// Kernels that wait for peers, with all ranks as blocks of one launch on one GPU: none is left
// outside while others wait for it, so that they run under compute-sanitizer, which lets no two
// launches run at the same time.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "ops/ops.h"
#include "parallel/peer_view.h"

namespace fathom {

// What MeetPeers does; `views` [ranks] lie in the device's memory.
void MeetInOneLaunch(const PeerView* views, int ranks, uint64_t wait_bits, cudaStream_t stream);

// What small all_reduce_norms of `size` ranks do, those of ranks 0, 1, ...; fewer than there are
// wait for the others. `workspace`, on the device, has room for SumNormInOneLaunchBytes.
void SumNormInOneLaunch(const PeerView* views, int size, std::span<const AllReduceNormArgs> ranks,
                        void* workspace, cudaStream_t stream);
size_t SumNormInOneLaunchBytes(size_t ranks);

}  // namespace fathom
