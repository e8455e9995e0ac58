// Ranks that are GPUs of several hosts: NCCL moves what they write for each other.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "cuda/device.h"
#include "parallel/gpu_ranks.h"
#include "parallel/nccl.h"

namespace fathom {

// A group's name, which one of its hosts makes and all of them know.
Result<std::string> NewNcclId();

class NcclRanks final : public GpuRanks {
 public:
  struct Here {
    int rank = 0;
    CudaDevice* device = nullptr;  // must outlive it
  };
  // Those of this host, `here`, of a group of `size` with ranks on other hosts too. Waits until all
  // hosts call it, for the same groups in the same order. What NCCL has is the process's to the
  // end: to give it back is a meeting of all hosts. THREAD: one, before the ranks' own begin.
  static Result<std::vector<std::unique_ptr<NcclRanks>>> Group(const std::string& id, int size,
                                                               std::span<const Here> here);

  // Recorded steps may have it. Of a device that failed NCCL is asked for nothing.
  void Meet(cudaStream_t stream, uint64_t wait_bits, const WindowParts& parts) override;
  bool linked() const override { return false; }

 private:
  NcclRanks(const PeerView& view, std::unique_ptr<DeviceMemory> memory, const NcclFunctions& nccl,
            NcclComm comm, CudaDevice& device)
      : GpuRanks(view), memory_(std::move(memory)), nccl_(nccl), comm_(comm), device_(device) {}

  const std::unique_ptr<DeviceMemory> memory_;  // what comes, what goes to each rank, counters
  const NcclFunctions& nccl_;
  const NcclComm comm_;
  CudaDevice& device_;
};

}  // namespace fathom
