// Where GPUs of one host wait for each other.
#pragma once

#include <cuda_runtime_api.h>

#include "parallel/peer_view.h"

namespace fathom {

// All ranks have done what they enqueued before this.
void LaunchPeerBarrier(const PeerView& peers, cudaStream_t stream);

}  // namespace fathom
