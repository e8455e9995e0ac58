// Where GPUs of one host wait for each other.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "parallel/peer_view.h"

namespace fathom {

// All ranks have done what they enqueued before this.
void LaunchPeerBarrier(const PeerView& peers, uint64_t wait_bits, cudaStream_t stream);

// Counts a meeting of ranks that NCCL joins, and tells the host of it.
void LaunchTellHost(const PeerView& peers, uint64_t wait_bits, cudaStream_t stream);

}  // namespace fathom
