#include "tests/gpu/test_peers.h"

#include <span>

#include "cuda/check.h"
#include "parallel/peer.h"
#include "tests/gpu/one_launch.h"

namespace fathom {
namespace {

std::vector<std::unique_ptr<CudaDevice>> Open(const std::vector<int>& gpus) {
  std::vector<std::unique_ptr<CudaDevice>> devices;
  for (const int gpu : gpus) {
    auto device = CudaDevice::Open(gpu);
    if (!device.ok()) break;
    devices.push_back(*std::move(device));
  }
  return devices;
}

// Those of PeerCommunicator::Group.
class LinkedGpus final : public TestPeers {
 public:
  explicit LinkedGpus(std::vector<std::unique_ptr<CudaDevice>> devices) {
    devices_ = std::move(devices);
    std::vector<CudaDevice*> all;
    for (const auto& device : devices_) all.push_back(device.get());
    auto group = PeerCommunicator::Group(all).value();
    for (auto& rank : group) ranks_.push_back(std::move(rank));
  }
};

}  // namespace

std::unique_ptr<TestPeers> TestPeers::OnGpus() {
  auto devices = Open({0, 1, 2, 3});
  if (devices.size() < 2) return nullptr;
  return std::make_unique<LinkedGpus>(std::move(devices));
}

class PeersOnOneGpu::Rank final : public GpuRanks {
 public:
  Rank(const PeerView& view, PeersOnOneGpu& all) : GpuRanks(view), all_(all) {}
  void Meet(cudaStream_t stream, uint64_t wait_bits, const WindowParts&) override {
    all_.wait_bits_ = wait_bits;  // equal on all
    CUDA_CHECK(cudaStreamSynchronize(stream));
    all_.here_.arrive_and_wait();
  }
  bool linked() const override { return true; }
  void Abort() override { all_.here_.arrive_and_drop(); }

 private:
  PeersOnOneGpu& all_;
};

void PeersOnOneGpu::MeetAll::operator()() noexcept {
  MeetInOneLaunch(peers->views(), peers->count(), peers->wait_bits_, nullptr);
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

std::unique_ptr<PeersOnOneGpu> PeersOnOneGpu::Make(int count) {
  auto devices = Open(std::vector<int>(static_cast<size_t>(count), 0));
  if (devices.empty()) return nullptr;
  return std::unique_ptr<PeersOnOneGpu>(new PeersOnOneGpu(std::move(devices)));
}

PeersOnOneGpu::PeersOnOneGpu(std::vector<std::unique_ptr<CudaDevice>> devices)
    : here_(static_cast<std::ptrdiff_t>(devices.size()), MeetAll{this}) {
  devices_ = std::move(devices);
  CudaDevice& first = device(0);
  first.BindThread();
  // Each rank's exchange and counters: memory begins with zeros.
  constexpr size_t kOfRank = (sizeof(PeerExchange) + sizeof(PeerCounters) + 255) / 256 * 256;
  const auto ranks = static_cast<size_t>(count());
  exchange_ = first.Allocate(ranks * kOfRank);
  std::byte* const memory = exchange_->data();
  std::vector<PeerView> views(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    PeerView& view = views[rank];
    view.rank = static_cast<int>(rank);
    view.size = count();
    for (size_t r = 0; r < ranks; ++r) {
      view.exchange[r] = reinterpret_cast<PeerExchange*>(memory + r * kOfRank);
      for (int parity : {0, 1}) view.windows[r][parity] = view.exchange[r]->windows[parity];
    }
    view.mine = view.exchange[rank];
    view.counters = reinterpret_cast<PeerCounters*>(view.mine + 1);
    view.abort = &host_.abort;
    view.waits_for = &host_.waits_for[rank];
    ranks_.push_back(std::make_unique<Rank>(view, *this));
  }
  views_ = first.Allocate(ranks * sizeof(PeerView));
  first.UploadBytes(views_->data(), std::as_bytes(std::span(views)));
  first.stream().Synchronize();
}

void PeersTest::SetUp() {
  if (one_gpu()) {
    peers_ = PeersOnOneGpu::Make(GetParam());
  } else {
    peers_ = TestPeers::OnGpus();
  }
  if (peers_ == nullptr) GTEST_SKIP() << "needs " << (one_gpu() ? "a GPU" : "two GPUs");
}

}  // namespace fathom
