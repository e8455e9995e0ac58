// NVIDIA's library that moves bytes between GPUs, found at run time: who uses one host needs none.
// Declared here as nccl.h of version 2.28 has it, which later ones keep.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "base/status.h"

namespace fathom {

struct NcclId {
  char bytes[128];
};
using NcclComm = struct ncclComm*;
using NcclResult = int;
inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr int kNcclBytes = 0;  // ncclInt8

struct NcclFunctions {
  NcclResult (*GetVersion)(int* version);
  NcclResult (*GetUniqueId)(NcclId* id);
  NcclResult (*CommInitRank)(NcclComm* comm, int ranks, NcclId id, int rank);
  NcclResult (*GroupStart)();
  NcclResult (*GroupEnd)();
  NcclResult (*Send)(const void* from, size_t count, int type, int peer, NcclComm, cudaStream_t);
  NcclResult (*Recv)(void* to, size_t count, int type, int peer, NcclComm, cudaStream_t);
  const char* (*GetLastError)(NcclComm comm);
};

// kUnavailable, with what to install, where there is none, or an older one than 2.28.
Result<const NcclFunctions*> Nccl();

// What went wrong, in NCCL's words; OK if nothing did.
Status NcclStatus(const NcclFunctions& nccl, NcclResult result);

}  // namespace fathom
