#include "parallel/nccl_ranks.h"

#include <cstdlib>
#include <cstring>

#include "cuda/check.h"
#include "parallel/peer_barrier.h"

namespace fathom {
namespace {

// Meetings leave the counter of epochs at 0: kernels write windows of parity 1, and read those of
// parity 0.
constexpr int kComes = 0, kGoes = 1;

PeerView ViewOf(int rank, int size, std::byte* memory) {
  const auto window = [memory](int number) {
    return reinterpret_cast<uint32_t*>(memory + static_cast<size_t>(number) * kWindowBytes);
  };
  PeerView view{.rank = rank, .size = size};
  for (int r = 0; r < size; ++r) view.windows[r][kGoes] = window(r);
  view.windows[rank][kComes] = window(size);
  view.counters = reinterpret_cast<PeerCounters*>(window(size + 1));
  CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&view.waits_for), sizeof(uint64_t),
                           cudaHostAllocPortable | cudaHostAllocMapped));
  *view.waits_for = 0;
  return view;
}

}  // namespace

Result<std::string> NewNcclId() {
  const NcclFunctions& nccl = *TRY(Nccl());
  NcclId id{};
  TRY(NcclStatus(nccl, nccl.GetUniqueId(&id)));
  return std::string(id.bytes, sizeof(id.bytes));
}

Result<std::vector<std::unique_ptr<NcclRanks>>> NcclRanks::Group(const std::string& id, int size,
                                                                 std::span<const Here> here) {
  if (size > kMostGpuRanks) {
    return Unimplemented("groups of {} GPUs over several hosts: at most {}", size, kMostGpuRanks);
  }
  const NcclFunctions& nccl = *TRY(Nccl());
  NcclId of_group{};
  if (id.size() != sizeof(of_group.bytes)) return DataLoss("a group's name of {} bytes", id.size());
  std::memcpy(of_group.bytes, id.data(), id.size());
  std::vector<NcclComm> comms(here.size());
  TRY(NcclStatus(nccl, nccl.GroupStart()));
  for (size_t i = 0; i < here.size(); ++i) {
    here[i].device->BindThread();
    TRY(NcclStatus(nccl, nccl.CommInitRank(&comms[i], size, of_group, here[i].rank)));
  }
  TRY(NcclStatus(nccl, nccl.GroupEnd()));
  std::vector<std::unique_ptr<NcclRanks>> ranks;
  for (size_t i = 0; i < here.size(); ++i) {
    CudaDevice& device = *here[i].device;
    device.BindThread();
    std::unique_ptr<DeviceMemory> memory = device.Allocate(WindowsBytes(size));
    const PeerView view = ViewOf(here[i].rank, size, memory->data());
    ranks.emplace_back(new NcclRanks(view, std::move(memory), nccl, comms[i], device));
  }
  // Connections are made when they are first used, which takes memory and waits for all.
  TRY(NcclStatus(nccl, nccl.GroupStart()));
  for (size_t i = 0; i < here.size(); ++i) {
    here[i].device->BindThread();
    ranks[i]->Meet(here[i].device->stream().get(), WaitBits(MeetingOp::kNone, 0, 0), [](int, int) {
      return WindowPart{0, 16};
    });
  }
  TRY(NcclStatus(nccl, nccl.GroupEnd()));
  for (const Here& rank : here) {
    rank.device->BindThread();
    rank.device->stream().Synchronize();
    TRY(rank.device->status());
  }
  return ranks;
}

void NcclRanks::Meet(cudaStream_t stream, uint64_t wait_bits, const WindowParts& parts) {
  Gpu& gpu = device_.gpu();
  if (gpu.failed()) return;
  LaunchTellHost(view(), wait_bits, stream);  // kernels of NCCL's say nothing
  const auto at = [this](int rank, int which, const WindowPart& part) {
    return reinterpret_cast<std::byte*>(view().windows[rank][which]) + part.at;
  };
  if (const WindowPart own = parts(rank(), rank()); own.bytes > 0) {
    gpu.Check(cudaMemcpyAsync(at(rank(), kComes, own), at(rank(), kGoes, own), own.bytes,
                              cudaMemcpyDeviceToDevice, stream));
  }
  NcclResult result = nccl_.GroupStart();
  const auto keep = [&result](NcclResult next) {
    if (result == kNcclSuccess) result = next;
  };
  for (int hop = 1; hop < size(); ++hop) {
    const int to = (rank() + hop) % size(), from = (rank() + size() - hop) % size();
    if (const WindowPart part = parts(rank(), to); part.bytes > 0) {
      keep(nccl_.Send(at(to, kGoes, part), part.bytes, kNcclBytes, to, comm_, stream));
    }
    if (const WindowPart part = parts(from, rank()); part.bytes > 0) {
      keep(nccl_.Recv(at(rank(), kComes, part), part.bytes, kNcclBytes, from, comm_, stream));
    }
  }
  keep(nccl_.GroupEnd());
  const Status status = NcclStatus(nccl_, result);
  if (!status.ok()) gpu.Fail(cudaErrorUnknown, std::string(status.message()));
}

}  // namespace fathom
