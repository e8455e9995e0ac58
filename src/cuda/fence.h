// Fences, named barriers, clusters, and register budgets. PTX ISA 9.0. For sm_90 and up;
// setmaxnreg needs sm_90a.
#pragma once

#include <cstdint>

namespace fathom {

// After mbarriers are initialised, before a barrier of those who use them (a cluster's, too).
__device__ __forceinline__ void FenceMbarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// What this thread wrote to shared memory is visible to wgmma and TMA that come after the barrier
// which follows this fence. Every writing thread calls it.
__device__ __forceinline__ void FenceAsyncShared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// What this thread has seen of memory is seen by the copies (TMA) that are asked for from now on by
// those who hear of it.
__device__ __forceinline__ void FenceAsync() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

// A barrier among `threads` threads (a multiple of 32) of the block. Ids 1 to 15; 0 is
// __syncthreads.
__device__ __forceinline__ void NamedBarrierSync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Counts at the barrier without waiting: the producer's side.
__device__ __forceinline__ void NamedBarrierArrive(uint32_t id, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The registers of each thread of this warpgroup; all its warps call it. Needs
// __launch_bounds__(threads, 1). kCount: a multiple of 8 from 24 to 256.
template <int kCount>
__device__ __forceinline__ void RaiseRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void LowerRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// True in one lane of a converged warp.
__device__ __forceinline__ bool ElectLane() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks of the cluster that have not ended: in two steps, or in one.
__device__ __forceinline__ void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void ClusterSync() {
  ClusterArrive();
  ClusterWait();
}

// Programmatic dependent launch: waits until the kernels before have finished and their writes are
// visible. Returns at once if the launch did not ask for it, as no launch can below sm_90.
__device__ __forceinline__ void WaitForPriorKernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel of the stream may start once all blocks have said so or ended.
__device__ __forceinline__ void AllowNextKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace fathom
