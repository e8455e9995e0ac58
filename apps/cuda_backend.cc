#include <algorithm>

#include "backends.h"
#include "base/log.h"
#include "cuda/device.h"
#include "cuda/peak.h"
#include "host_facts.h"
#include "parallel/nccl_ranks.h"
#include "parallel/peer.h"

namespace fathom {

namespace {

using Members = std::vector<std::unique_ptr<Communicator>>;

// Of ranks on other hosts too: whose first rank this host has, makes the group's name.
Result<Members> OverHosts(std::span<const int> ranks, Hosts& hosts, int first_rank,
                          std::span<CudaDevice* const> gpus) {
  const std::string mine = hosts.Here(ranks[0]) ? TRY(NewNcclId()) : "";
  const std::vector<std::string> said = TRY(hosts.Share(mine));
  std::vector<NcclRanks::Here> here;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!hosts.Here(ranks[i])) continue;
    here.push_back({static_cast<int>(i), gpus[static_cast<size_t>(ranks[i] - first_rank)]});
  }
  Members members(ranks.size());
  if (here.empty()) return members;
  auto made = TRY(NcclRanks::Group(said[static_cast<size_t>(hosts.HostOf(ranks[0]))],
                                   static_cast<int>(ranks.size()), here));
  for (size_t i = 0; i < made.size(); ++i) {
    members[static_cast<size_t>(here[i].rank)] = std::move(made[i]);
  }
  return members;
}

// Ranks of one host write into each other's memory; those of several, NCCL joins.
JoinedRanks::MakeGroup GroupsOver(Hosts& hosts, int first_rank, std::vector<CudaDevice*> gpus) {
  return
      [&hosts, first_rank, gpus = std::move(gpus)](std::span<const int> ranks) -> Result<Members> {
        const int host = hosts.HostOf(ranks[0]);
        const auto there = [&](int rank) { return hosts.HostOf(rank) == host; };
        if (!std::ranges::all_of(ranks, there)) return OverHosts(ranks, hosts, first_rank, gpus);
        if (host != hosts.index()) return Members(ranks.size());
        std::vector<int> local;
        for (const int rank : ranks) local.push_back(rank - first_rank);
        return PeerCommunicator::Among(gpus)(local);
      };
}

}  // namespace

Status AddGpus(std::string_view name, int first, Hosts* hosts, Backend& backend) {
  const auto activations =
      name.ends_with("-fp8") ? Fp8Activations::kQuantized : Fp8Activations::kExact;
  const int here = hosts == nullptr ? backend.layout.world() : hosts->ranks_each();
  std::vector<CudaDevice*> gpus;
  for (int rank = 0; rank < here; ++rank) {
    Result<std::unique_ptr<CudaDevice>> opened = CudaDevice::Open(first + rank);
    if (!opened.ok() && rank > 0) {
      return opened.status().WithContext(
          fmt::format("--pipeline-parallel-size {} x --data-parallel-size {} x "
                      "--tensor-parallel-size {}",
                      backend.layout.pipeline, backend.layout.data, backend.layout.tensor));
    }
    std::unique_ptr<CudaDevice> device = TRY(std::move(opened));
    const Ops& ops = name.starts_with("cuda-portable") ? CudaPortableOps(activations)
                                                       : CudaOps(*device, activations);
    if (backend.ops != nullptr && backend.ops != &ops) {
      return InvalidArgument("GPUs {} and {} are of different kinds: ranks need equal ones", first,
                             first + rank);
    }
    backend.ops = &ops;
    LOG_INFO("GPU {}: its threads run on {}", first + rank, device->where_threads_run());
    gpus.push_back(device.get());
    backend.devices.push_back(std::move(device));
  }
  if (hosts == nullptr) {
    backend.joined =
        TRY(JoinedRanks::Join(backend.layout, PeerCommunicator::Among(std::move(gpus))));
    backend.peer_bytes = PeerBytes(backend.layout);
    return {};
  }
  if (const std::string name = hosts->interface(); !name.empty()) {
    setenv("NCCL_SOCKET_IFNAME", ("=" + name).c_str(), /*overwrite=*/0);
  }
  if (here > 1) {
    LOG_WARNING(
        "steps are not recorded: NCCL joins the hosts, and is not trusted in graphs where a "
        "process has several GPUs; with a process for each (--nnodes {}, each its --gpu) they "
        "would be",
        backend.layout.world());
    for (CudaDevice* device : gpus) device->RecordNothing();
  }
  EndWithLostHost(*hosts);
  const int64_t before = gpus[0]->FreeBytes();
  backend.joined = TRY(
      JoinedRanks::Join(backend.layout, GroupsOver(*hosts, backend.first_rank, std::move(gpus))));
  hosts->OnEnd(nullptr);
  backend.peer_bytes = static_cast<size_t>(std::max<int64_t>(
      0, before - static_cast<CudaDevice&>(*backend.devices[0]).FreeBytes()));  // NCCL's too
  return {};
}

Result<std::string> CudaOpsFor(int gpu) {
  const std::unique_ptr<CudaDevice> device = TRY(CudaDevice::Open(gpu));
  if (device->is_hopper()) return std::string("cuda-fp8");
  LOG_INFO("{}: --ops cuda, because the kernels of cuda-fp8 are for Hopper GPUs", device->name());
  return std::string("cuda");
}

Result<GpuMachine> MeasureGpu(int gpu, int64_t read_bytes) {
  const std::unique_ptr<CudaDevice> device = TRY(CudaDevice::Open(gpu));
  const CudaPeaks peaks = MeasureCudaPeaks(*device, read_bytes);
  return GpuMachine{.name = std::string(device->name()),
                    .driver = CudaDriverVersion(),
                    .read_bandwidth = peaks.read_bandwidth,
                    .fp32_peak = peaks.fp32,
                    .bf16_peak = peaks.bf16,
                    .fp8_peak = peaks.fp8};
}

}  // namespace fathom
