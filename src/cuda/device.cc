#include "cuda/device.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/check.h"

namespace fathom {
namespace {

// CUDA 13, whose first drivers are those of branch 580.
constexpr int kLeastDriver = 13000;
constexpr size_t kDownloadBytes = size_t{8} << 20;

size_t Bytes(const TensorView& view) {
  return static_cast<size_t>(view.elements()) * ByteSize(view.dtype());
}

// Of the NUMA node that this GPU hangs from.
NearCpus CpusNearGpu(int gpu) {
  std::array<char, 32> pci_device{};
  CUDA_CHECK(cudaDeviceGetPCIBusId(pci_device.data(), pci_device.size(), gpu));
  return CpusNear(pci_device.data(), AllowedCpus());
}

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::Open(int gpu) {
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return Unavailable("--device cuda: no NVIDIA driver was found; install version 580 or later");
  }
  if (driver < kLeastDriver) {
    return Unavailable(
        "--device cuda: the NVIDIA driver speaks CUDA {}.{}, and {}.{} is needed: install version "
        "580 or later",
        driver / 1000, driver % 1000 / 10, kLeastDriver / 1000, kLeastDriver % 1000 / 10);
  }
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return Unavailable("--device cuda: {}", cudaGetErrorString(error));
  }
  if (gpu < 0 || gpu >= count) {
    return InvalidArgument("--gpu {}: this machine has {} (the first is 0)", gpu, count);
  }
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, gpu); error != cudaSuccess) {
    return Unavailable("--gpu {}: {}", gpu, cudaGetErrorString(error));
  }
  if (properties.major < 8) {
    return Unavailable("--gpu {}: {} has compute capability {}.{}, and 8.0 is needed", gpu,
                       properties.name, properties.major, properties.minor);
  }
  if (const cudaError_t error = cudaSetDevice(gpu); error != cudaSuccess) {
    return Unavailable("--gpu {}: {}", gpu, cudaGetErrorString(error));
  }
  return std::unique_ptr<CudaDevice>(new CudaDevice(gpu));
}

CudaDevice::CudaDevice(int gpu) : gpu_(gpu), near_(CpusNearGpu(gpu)) {
  const OnCpus near(near_.cpus);  // memory that copies pass through lies there too
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, gpu));
  name_ = properties.name;
  arena_ = std::make_unique<CudaArena>(gpu, properties.totalGlobalMem);
  stream_ = std::make_unique<CudaStream>(*this);
  uploads_ = std::make_unique<UploadStaging>();
  downloads_ = std::make_unique<PinnedMemory>(kDownloadBytes);
  for (cudaEvent_t& mark : marks_) {
    CUDA_CHECK(cudaEventCreateWithFlags(&mark, cudaEventDisableTiming));
  }
}

CudaDevice::~CudaDevice() {
  if (!gpu_.failed()) {
    gpu_.BindThread();
    stream_->Synchronize();
  }
  if (gpu_.failed()) {  // it is asked for nothing more: the process is about to leave
    // Without a word to CUDA, which would wait for kernels that wait for ever.
    on_exit([](int status, void*) { std::fflush(nullptr), std::_Exit(status); }, nullptr);
    static_cast<void>(downloads_.release());
    static_cast<void>(uploads_.release());
    static_cast<void>(stream_.release());
    static_cast<void>(arena_.release());
    return;
  }
  for (const auto& [key, graph] : graphs_) {
    if (graph != nullptr) CUDA_CHECK(cudaGraphExecDestroy(graph));
  }
  for (cudaEvent_t mark : marks_) CUDA_CHECK(cudaEventDestroy(mark));
}

void CudaDevice::BindThread() {
  gpu_.BindThread();
}

int64_t CudaDevice::FreeBytes() const {
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

std::unique_ptr<DeviceMemory> CudaDevice::Allocate(size_t bytes) {
  std::unique_ptr<DeviceMemory> memory = arena_->Allocate(bytes);
  if (bytes > 0) gpu_.Check(cudaMemsetAsync(memory->data(), 0, bytes, stream_->get()));
  return memory;
}

void CudaDevice::Upload(const TensorView& to, std::span<const std::byte> from) {
  CHECK(to.contiguous() && from.size() == Bytes(to));
  UploadBytes(to.data(), from);
}

void CudaDevice::UploadBytes(void* to, std::span<const std::byte> from) {
  if (gpu_.failed()) return;
  if (from.size() <= SmallCopies::kMostBytes) return UploadSmall(to, from);
  auto* at = static_cast<std::byte*>(to);
  while (!from.empty()) {
    const size_t bytes = std::min(from.size(), UploadStaging::kChunk);
    std::byte* staged = uploads_->Reserve(bytes, stream_->get());
    std::memcpy(staged, from.data(), bytes);
    gpu_.Check(cudaMemcpyAsync(at, staged, bytes, cudaMemcpyHostToDevice, stream_->get()));
    from = from.subspan(bytes);
    at += bytes;
  }
}

void CudaDevice::UploadSmall(void* to, std::span<const std::byte> from) {
  if (from.empty()) return;
  // A chunk is left only when all its uploads are enqueued.
  cudaStream_t stream = uploads_->HasRoom(from.size()) ? nullptr : stream_->get();
  std::byte* staged = uploads_->Reserve(from.size(), stream);
  std::memcpy(staged, from.data(), from.size());
  CopySmall({to, staged, static_cast<uint32_t>(from.size())});
}

void CudaDevice::CopySmall(const SmallCopy& copy) {
  bool flush = small_copies_.count == SmallCopies::kMost;
  for (int i = 0; i < small_copies_.count; ++i) flush |= copy.Collides(small_copies_.items[i]);
  if (flush) stream_->get();
  small_copies_.items[small_copies_.count++] = copy;
}

void CudaDevice::FlushSmallCopies(cudaStream_t stream) {
  if (small_copies_.count == 0) return;
  if (!gpu_.failed()) gpu_.Check(LaunchScatter(small_copies_, stream));
  small_copies_.count = 0;
}

size_t CudaDevice::DownloadOffset(size_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  for (;;) {
    if (pending_.empty()) {
      downloads_head_ = 0;
      break;
    }
    const size_t tail = pending_.front().offset;
    if (downloads_head_ > tail) {  // free: from the head to the end, and up to the tail
      if (downloads_head_ + bytes <= downloads_->size()) break;
      if (bytes < tail) {
        downloads_head_ = 0;
        break;
      }
    } else if (downloads_head_ + bytes < tail) {  // free: from the head to the tail
      break;
    }
    stream_->Synchronize();
  }
  const size_t offset = downloads_head_;
  downloads_head_ += bytes;
  return offset;
}

void CudaDevice::Download(std::span<std::byte> to, const TensorView& from) {
  CHECK(from.contiguous() && to.size() == Bytes(from));
  if (gpu_.failed()) return;
  const auto* at = static_cast<const std::byte*>(from.data());
  while (!to.empty()) {
    const size_t bytes = std::min(to.size(), downloads_->size() / 4);
    const size_t offset = DownloadOffset(bytes);
    std::byte* const staged = downloads_->data() + offset;
    if (bytes <= SmallCopies::kMostBytes) {
      CopySmall({staged, at, static_cast<uint32_t>(bytes)});
    } else {
      gpu_.Check(cudaMemcpyAsync(staged, at, bytes, cudaMemcpyDeviceToHost, stream_->get()));
    }
    pending_.push_back({to.first(bytes), offset, next_mark_});
    to = to.subspan(bytes);
    at += bytes;
  }
}

void CudaDevice::DeliverDownloads(uint64_t up_to) {
  if (gpu_.failed()) pending_.clear();
  while (!pending_.empty() && pending_.front().mark <= up_to) {
    const PendingDownload& download = pending_.front();
    std::memcpy(download.to.data(), downloads_->data() + download.offset, download.to.size());
    pending_.pop_front();
  }
}

uint64_t CudaDevice::Mark() {
  const uint64_t mark = next_mark_++;
  mark_steps_[mark % kMaxMarks] = current_activity.step;
  if (!gpu_.failed()) {
    gpu_.Check(cudaEventRecord(marks_[mark % kMaxMarks], stream_->get()));
  }
  return mark;
}

bool CudaDevice::Passed(uint64_t mark) {
  // WaitFor reports errors.
  return gpu_.failed() || cudaEventQuery(marks_[mark % kMaxMarks]) != cudaErrorNotReady;
}

void CudaDevice::WaitFor(uint64_t mark) {
  CHECK(mark < next_mark_ && mark + kMaxMarks >= next_mark_, "mark {} of {}", mark, next_mark_);
  if (!gpu_.failed()) {
    stream_->WaitFor(marks_[mark % kMaxMarks], mark_steps_[mark % kMaxMarks]);
  }
  DeliverDownloads(mark);
}

cudaGraphExec_t CudaDevice::Record(const std::function<void()>& enqueue) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t recorded = nullptr;
  if (!gpu_.Check(cudaStreamBeginCapture(stream_->get(), cudaStreamCaptureModeThreadLocal))) {
    return nullptr;
  }
  enqueue();
  if (gpu_.Check(cudaStreamEndCapture(stream_->get(), &graph)) &&
      gpu_.Check(cudaGraphInstantiate(&recorded, graph, 0)) &&
      gpu_.Check(cudaGraphUpload(recorded, stream_->get()))) {
    gpu_.Check(cudaGraphDestroy(graph));
  }
  return recorded;
}

void CudaDevice::RecordOrReplay(uint64_t key, const std::function<void()>& enqueue) {
  if (gpu_.failed()) return;
  if (!records()) return enqueue();
  const auto [at, first] = graphs_.try_emplace(key, nullptr);
  if (first) return enqueue();  // kernels are loaded now, which a capture must not do
  if (at->second == nullptr) at->second = Record(enqueue);
  if (gpu_.failed()) return;
  OpTimes* const times = stream_->step_times();
  if (times != nullptr) times->After("between steps", stream_->get());
  current_activity.describe = nullptr;  // no op of this step was seen
  gpu_.Check(cudaGraphLaunch(at->second, stream_->get()));
  if (times != nullptr) times->After("step", stream_->get());
}

}  // namespace fathom
