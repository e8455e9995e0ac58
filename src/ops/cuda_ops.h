// The functions of CudaPortableOps, one per op, which run on any GPU from sm_80 on; their streams
// are CudaStream.
#pragma once

#include "cuda/stream.h"
#include "ops/ops.h"

namespace fathom {

void EmbedCuda(OpContext&, const EmbedArgs&);
void RmsNormCuda(OpContext&, const RmsNormArgs&);
void LaunchRmsNorm(const RmsNormArgs&, cudaStream_t);
void AllReduceNormCuda(OpContext&, const AllReduceNormArgs&);
void AllGatherCuda(OpContext&, const AllGatherArgs&);
void DispatchCuda(OpContext&, const DispatchArgs&);
void CombineCuda(OpContext&, const CombineArgs&);
void LinearCuda(OpContext&, const LinearArgs&);
size_t LinearCudaWorkspace(const Stream&, const LinearArgs&);
void HeadLinearCuda(OpContext&, const HeadLinearArgs&);
void SiluMulCuda(OpContext&, const SiluMulArgs&);
void MlpCuda(OpContext&, const MlpArgs&);
size_t MlpCudaWorkspace(const Stream&, const MlpArgs&);
void RotateAndCacheCuda(OpContext&, const RotateAndCacheArgs&);
void AttendAbsorbedCuda(OpContext&, const AttendAbsorbedArgs&);
void GatherContextCuda(OpContext&, const GatherContextArgs&);
void AttendExpandedCuda(OpContext&, const AttendExpandedArgs&);
void RouteCuda(OpContext&, const RouteArgs&);
size_t RouteCudaWorkspace(const Stream&, const RouteArgs&);
void MoeExpertsCuda(OpContext&, const MoeExpertsArgs&);
size_t MoeExpertsCudaWorkspace(const Stream&, const MoeExpertsArgs&);
void GatherTokensCuda(OpContext&, const GatherTokensArgs&);
void PrepareInputsCuda(OpContext&, const PrepareInputsArgs&);
void AdjustLogitsCuda(OpContext&, const AdjustLogitsArgs&);
void LogProbsCuda(OpContext&, const LogProbsArgs&);
void SampleCuda(OpContext&, const SampleArgs&);
void CommitCuda(OpContext&, const CommitArgs&);
void VerifyDraftsCuda(OpContext&, const VerifyDraftsArgs&);
void ProposeNgramCuda(OpContext&, const ProposeNgramArgs&);
void PrepareDraftsCuda(OpContext&, const PrepareDraftsArgs&);
void ConvertCuda(OpContext&, const ConvertArgs&);
void AddDraftCuda(OpContext&, const AddDraftArgs&);

inline CudaStream& Cuda(OpContext& context) {
  return static_cast<CudaStream&>(context.stream);
}

}  // namespace fathom
