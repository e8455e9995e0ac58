// The functions of the reference table, one per op; they need no particular stream.
#pragma once

#include "ops/ops.h"

namespace fathom {

void EmbedReference(OpContext&, const EmbedArgs&);
void RmsNormReference(OpContext&, const RmsNormArgs&);
void AllReduceNormReference(OpContext&, const AllReduceNormArgs&);
void AllGatherReference(OpContext&, const AllGatherArgs&);
void DispatchReference(OpContext&, const DispatchArgs&);
void CombineReference(OpContext&, const CombineArgs&);
size_t CombineReferenceWorkspace(const Stream&, const CombineArgs&);
void LinearReference(OpContext&, const LinearArgs&);
size_t LinearReferenceWorkspace(const Stream&, const LinearArgs&);
void HeadLinearReference(OpContext&, const HeadLinearArgs&);
void SiluMulReference(OpContext&, const SiluMulArgs&);
void MlpReference(OpContext&, const MlpArgs&);
size_t MlpReferenceWorkspace(const Stream&, const MlpArgs&);
void RotateAndCacheReference(OpContext&, const RotateAndCacheArgs&);
void AttendAbsorbedReference(OpContext&, const AttendAbsorbedArgs&);
size_t AttendAbsorbedReferenceWorkspace(const Stream&, const AttendAbsorbedArgs&);
void GatherContextReference(OpContext&, const GatherContextArgs&);
void AttendExpandedReference(OpContext&, const AttendExpandedArgs&);
size_t AttendExpandedReferenceWorkspace(const Stream&, const AttendExpandedArgs&);
void RouteReference(OpContext&, const RouteArgs&);
size_t RouteReferenceWorkspace(const Stream&, const RouteArgs&);
void MoeExpertsReference(OpContext&, const MoeExpertsArgs&);
size_t MoeExpertsReferenceWorkspace(const Stream&, const MoeExpertsArgs&);
void GatherTokensReference(OpContext&, const GatherTokensArgs&);
void PrepareInputsReference(OpContext&, const PrepareInputsArgs&);
void AdjustLogitsReference(OpContext&, const AdjustLogitsArgs&);
void LogProbsReference(OpContext&, const LogProbsArgs&);
size_t LogProbsReferenceWorkspace(const Stream&, const LogProbsArgs&);
void SampleReference(OpContext&, const SampleArgs&);
size_t SampleReferenceWorkspace(const Stream&, const SampleArgs&);
void CommitReference(OpContext&, const CommitArgs&);
void VerifyDraftsReference(OpContext&, const VerifyDraftsArgs&);
void ProposeNgramReference(OpContext&, const ProposeNgramArgs&);
void PrepareDraftsReference(OpContext&, const PrepareDraftsArgs&);
void ConvertReference(OpContext&, const ConvertArgs&);
void AddDraftReference(OpContext&, const AddDraftArgs&);

}  // namespace fathom
