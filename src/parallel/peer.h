// Ranks that are GPUs of one host: kernels write into each other's memory over NVLink.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "cuda/device.h"
#include "parallel/gpu_ranks.h"
#include "parallel/rank_groups.h"

namespace fathom {

// Peers see a small arena for exchange, never weights or cache. No NVLink multicast.
class PeerCommunicator final : public GpuRanks {
 public:
  // Those of a group with a rank on each device, which must outlive it. kUnimplemented for GPUs
  // that cannot read each other's memory. THREAD: one, before the ranks' own begin.
  static Result<std::vector<std::unique_ptr<PeerCommunicator>>> Group(
      std::span<CudaDevice* const> devices);

  // For JoinedRanks, of ranks with these devices, in their order.
  static JoinedRanks::MakeGroup Among(std::vector<CudaDevice*> devices);

  void Meet(cudaStream_t stream, uint64_t wait_bits, const WindowParts& parts) override;
  bool linked() const override { return true; }
  void Abort() override;  // of all ranks

 private:
  class Memory;
  PeerCommunicator(const PeerView& view, std::shared_ptr<Memory> memory)
      : GpuRanks(view), memory_(std::move(memory)) {}

  std::shared_ptr<Memory> memory_;
};

}  // namespace fathom
