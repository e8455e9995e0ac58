// The functions of the CPU table, one per op; their streams are CpuStream.
#pragma once

#include "cpu/cpu_stream.h"
#include "ops/ops.h"

namespace fathom {

void EmbedCpu(OpContext&, const EmbedArgs&);
void RmsNormCpu(OpContext&, const RmsNormArgs&);
void AllReduceNormCpu(OpContext&, const AllReduceNormArgs&);
void DispatchCpu(OpContext&, const DispatchArgs&);
void ConvertCpu(OpContext&, const ConvertArgs&);
void CombineCpu(OpContext&, const CombineArgs&);
void LinearCpu(OpContext&, const LinearArgs&);
size_t LinearCpuWorkspace(const Stream&, const LinearArgs&);
void HeadLinearCpu(OpContext&, const HeadLinearArgs&);
size_t HeadLinearCpuWorkspace(const Stream&, const HeadLinearArgs&);
void SiluMulCpu(OpContext&, const SiluMulArgs&);
void MlpCpu(OpContext&, const MlpArgs&);
size_t MlpCpuWorkspace(const Stream&, const MlpArgs&);
void RotateAndCacheCpu(OpContext&, const RotateAndCacheArgs&);
void AttendAbsorbedCpu(OpContext&, const AttendAbsorbedArgs&);
size_t AttendAbsorbedCpuWorkspace(const Stream&, const AttendAbsorbedArgs&);
void GatherContextCpu(OpContext&, const GatherContextArgs&);
void AttendExpandedCpu(OpContext&, const AttendExpandedArgs&);
size_t AttendExpandedCpuWorkspace(const Stream&, const AttendExpandedArgs&);
void RouteCpu(OpContext&, const RouteArgs&);
size_t RouteCpuWorkspace(const Stream&, const RouteArgs&);
void MoeExpertsCpu(OpContext&, const MoeExpertsArgs&);
size_t MoeExpertsCpuWorkspace(const Stream&, const MoeExpertsArgs&);
void AdjustLogitsCpu(OpContext&, const AdjustLogitsArgs&);
void LogProbsCpu(OpContext&, const LogProbsArgs&);
size_t LogProbsCpuWorkspace(const Stream&, const LogProbsArgs&);
void SampleCpu(OpContext&, const SampleArgs&);
size_t SampleCpuWorkspace(const Stream&, const SampleArgs&);

inline ThreadPool& Pool(OpContext& context) {
  return static_cast<CpuStream&>(context.stream).pool();
}
inline int Threads(const Stream& stream) {
  return static_cast<const CpuStream&>(stream).threads();
}
// The live count, held to the capacity.
inline int64_t Live(const TensorView& live, int64_t capacity) {
  const int64_t n = *live.As<int32_t>();
  CHECK(n >= 0 && n <= capacity, "{} live of {}", n, capacity);
  return n;
}

}  // namespace fathom
