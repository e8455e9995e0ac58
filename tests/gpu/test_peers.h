// Ranks on GPUs, for tests.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <memory>
#include <new>
#include <vector>

#include "cuda/device.h"
#include "cuda/staging.h"
#include "parallel/gpu_ranks.h"

namespace fathom {

class TestPeers {
 public:
  virtual ~TestPeers() = default;
  int count() const { return static_cast<int>(devices_.size()); }
  CudaDevice& device(int rank) { return *devices_[static_cast<size_t>(rank)]; }
  GpuRanks& of(int rank) { return *ranks_[static_cast<size_t>(rank)]; }

  // As many as there are GPUs that reach each other's memory, at most four; null if there are not
  // two.
  static std::unique_ptr<TestPeers> OnGpus();

 protected:
  std::vector<std::unique_ptr<CudaDevice>> devices_;
  std::vector<std::unique_ptr<GpuRanks>> ranks_;
};

// All of them on GPU 0. Where peers have a barrier these wait for each other on the host, and then
// meet in one launch; so what is between barriers runs as it does on several GPUs, but by turns.
class PeersOnOneGpu final : public TestPeers {
 public:
  static std::unique_ptr<PeersOnOneGpu> Make(int count);  // null without a GPU

  const PeerView* views() const { return reinterpret_cast<const PeerView*>(views_->data()); }
  void GiveUp() { std::atomic_ref(host_.abort).store(1); }  // what waits, does no more

 private:
  class Rank;
  struct MeetAll {  // once all are here
    PeersOnOneGpu* peers;
    void operator()() noexcept;
  };
  explicit PeersOnOneGpu(std::vector<std::unique_ptr<CudaDevice>> devices);

  struct HostWords {
    uint32_t abort = 0;
    alignas(128) uint64_t waits_for[PeerExchange::kMaxRanks] = {};
  };
  PinnedMemory pinned_{sizeof(HostWords)};
  HostWords& host_ = *new (pinned_.data()) HostWords;
  std::unique_ptr<DeviceMemory> exchange_, views_;  // of all ranks
  std::atomic<uint64_t> wait_bits_ = 0;             // of those who meet
  std::barrier<MeetAll> here_;
};

// Of so many ranks on one GPU; 0: of ranks on GPUs.
class PeersTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override;
  bool one_gpu() const { return GetParam() > 0; }
  int count() const { return peers_->count(); }

  std::unique_ptr<TestPeers> peers_;
};

}  // namespace fathom
