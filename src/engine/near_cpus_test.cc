// Where the threads of ranks run whose devices are near some CPUs.
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <vector>

#include "base/numa_node.h"
#include "cpu/cpu_device.h"
#include "engine/assembly.h"
#include "parallel/shared_memory.h"

namespace fathom {
namespace {

class DeviceNear final : public CpuDevice {
 public:
  explicit DeviceNear(std::vector<int> cpus) : CpuDevice(1), cpus_(std::move(cpus)) {}
  std::span<const int> near_cpus() const override { return cpus_; }
  void BindThread() override {
    const std::lock_guard lock(mutex_);
    seen_.push_back(AllowedCpus());
  }
  // Of each thread that bound itself to the device.
  std::vector<std::vector<int>> seen() {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  const std::vector<int> cpus_;
  std::mutex mutex_;
  std::vector<std::vector<int>> seen_;  // guarded by mutex_
};

TEST(NearCpusTest, ThreadsThatLoadAndThatRunStepsAreThereAndTheCallersIsNot) {
  const std::vector<int> allowed = AllowedCpus(), last = {allowed.back()};
  for (const ParallelLayout& layout : {ParallelLayout{}, ParallelLayout{.tensor = 2}}) {
    const JoinedRanks joined = JoinedRanks::Join(layout, SharedMemoryCommunicator::GroupOf).value();
    std::vector<std::unique_ptr<DeviceNear>> devices;
    std::vector<EngineRank> places;
    for (int rank = 0; rank < layout.world(); ++rank) {
      devices.push_back(std::make_unique<DeviceNear>(rank == 0 ? last : std::vector<int>()));
      places.push_back(
          {devices.back().get(), Shard::OfRank(layout, rank, joined.Of(rank)), /*peer_bytes=*/0});
    }
    Checkpoint checkpoint = Checkpoint::Open("models/tiny-r1").value();
    EngineLimits limits{.max_model_len = 256, .max_num_seqs = 2, .prefill_chunk = 64};
    limits.FillDefaults(/*gpu=*/false);
    const AssembledEngine assembled =
        AssembleEngine(checkpoint, CpuOps(Fp8Activations::kExact), places, {.limits = limits},
                       /*progress=*/nullptr, [](const std::vector<RequestOutput>&) {})
            .value();
    EXPECT_EQ(devices[0]->seen(), std::vector(3, last)) << "loading, laying out, running steps";
    if (devices.size() > 1) {
      EXPECT_EQ(devices[1]->seen(), std::vector(3, allowed));
    }
    EXPECT_EQ(AllowedCpus(), allowed);
  }
}

}  // namespace
}  // namespace fathom
