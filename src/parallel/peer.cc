#include "parallel/peer.h"

#include <algorithm>
#include <atomic>

#include "cuda/check.h"
#include "cuda/driver.h"
#include "parallel/peer_barrier.h"

namespace fathom {

// Of all ranks; unmapped when the last of them is gone.
class PeerCommunicator::Memory {
 public:
  explicit Memory(std::span<CudaDevice* const> devices) : devices_(devices.begin(), devices.end()) {
    CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&host_), sizeof(HostWords),
                             cudaHostAllocPortable | cudaHostAllocMapped));
    *host_ = {};
    for (CudaDevice* device : devices) Map(*device);
  }
  ~Memory() {
    const auto failed = [this] {
      return std::ranges::any_of(devices_,
                                 [](CudaDevice* device) { return device->gpu().failed(); });
    };
    for (CudaDevice* device : devices_) {  // nobody writes into what is unmapped
      if (failed()) return;  // nothing more is asked of any: the process is about to leave
      device->BindThread();
      device->stream().Synchronize();
    }
    if (failed()) return;
    for (const Mapping& m : mappings_) {
      CU_CHECK(Driver().MemUnmap(m.at, m.size));
      CU_CHECK(Driver().MemAddressFree(m.at, m.size));
      CU_CHECK(Driver().MemRelease(m.handle));
    }
    CUDA_CHECK(cudaFreeHost(host_));
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void Abort() { std::atomic_ref(host_->abort).store(1); }
  PeerView ViewOf(int rank) const {
    PeerView view{.rank = rank,
                  .size = static_cast<int>(mappings_.size()),
                  .waits_for = &host_->waits_for[rank],
                  .abort = &host_->abort};
    for (int r = 0; r < view.size; ++r) {
      view.exchange[r] = reinterpret_cast<PeerExchange*>(mappings_[static_cast<size_t>(r)].at);
      for (int parity : {0, 1}) view.windows[r][parity] = view.exchange[r]->windows[parity];
    }
    view.mine = view.exchange[rank];
    view.counters = reinterpret_cast<PeerCounters*>(view.mine + 1);
    return view;
  }

 private:
  // In the host's memory, where kernels read and write them.
  struct HostWords {
    uint32_t abort = 0;
    alignas(128) uint64_t waits_for[PeerExchange::kMaxRanks] = {};
  };
  struct Mapping {
    CUdeviceptr at = 0;
    size_t size = 0;
    CUmemGenericAllocationHandle handle = 0;
  };

  // The rank's exchange and, behind it, its counters, at one address for all devices; zeroed.
  void Map(CudaDevice& owner) {
    owner.BindThread();
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = owner.gpu().ordinal()};
    size_t granularity = 0;
    CU_CHECK(Driver().MemGetAllocationGranularity(&granularity, &properties,
                                                  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    Mapping& m = mappings_.emplace_back();
    const size_t bytes = sizeof(PeerExchange) + sizeof(PeerCounters);
    m.size = (bytes + granularity - 1) / granularity * granularity;
    CU_CHECK(Driver().MemCreate(&m.handle, m.size, &properties, 0));
    CU_CHECK(Driver().MemAddressReserve(&m.at, m.size, 0, 0, 0));
    CU_CHECK(Driver().MemMap(m.at, m.size, 0, m.handle, 0));
    std::vector<CUmemAccessDesc> access(devices_.size());
    for (size_t i = 0; i < devices_.size(); ++i) {
      access[i].location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                            .id = devices_[i]->gpu().ordinal()};
      access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    CU_CHECK(Driver().MemSetAccess(m.at, m.size, access.data(), access.size()));
    CUDA_CHECK(cudaMemset(reinterpret_cast<void*>(m.at), 0, m.size));
    CUDA_CHECK(cudaDeviceSynchronize());
  }

  std::vector<CudaDevice*> devices_;
  std::vector<Mapping> mappings_;  // of each rank
  HostWords* host_ = nullptr;
};

JoinedRanks::MakeGroup PeerCommunicator::Among(std::vector<CudaDevice*> devices) {
  return [devices = std::move(devices)](
             std::span<const int> ranks) -> Result<std::vector<std::unique_ptr<Communicator>>> {
    std::vector<CudaDevice*> of_group;
    for (const int rank : ranks) of_group.push_back(devices[static_cast<size_t>(rank)]);
    std::vector<std::unique_ptr<Communicator>> members;
    for (auto& member : TRY(Group(of_group))) members.push_back(std::move(member));
    return members;
  };
}

void PeerCommunicator::Meet(cudaStream_t stream, uint64_t wait_bits, const WindowParts&) {
  LaunchPeerBarrier(view(), wait_bits, stream);
}

void PeerCommunicator::Abort() {
  memory_->Abort();
}

Result<std::vector<std::unique_ptr<PeerCommunicator>>> PeerCommunicator::Group(
    std::span<CudaDevice* const> devices) {
  if (devices.size() > PeerExchange::kMaxRanks) {
    return Unimplemented("{} ranks on GPUs of one host: at most {}", devices.size(),
                         PeerExchange::kMaxRanks);
  }
  for (CudaDevice* a : devices) {
    for (CudaDevice* b : devices) {
      int can = a == b ? 1 : 0;
      if (a != b) {
        CUDA_CHECK(cudaDeviceCanAccessPeer(&can, a->gpu().ordinal(), b->gpu().ordinal()));
      }
      if (can == 0) {
        return Unimplemented(
            "GPUs {} and {} cannot reach each other's memory: ranks need GPUs that are linked "
            "(nvidia-smi topo -p2p r)",
            a->gpu().ordinal(), b->gpu().ordinal());
      }
    }
  }
  const auto memory = std::make_shared<Memory>(devices);
  std::vector<std::unique_ptr<PeerCommunicator>> ranks;
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    ranks.emplace_back(new PeerCommunicator(memory->ViewOf(static_cast<int>(rank)), memory));
  }
  return ranks;
}

}  // namespace fathom
