#include "cuda/device.h"

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

CudaDevice::CudaDevice(int gpu) : gpu_(gpu) {
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, gpu));
  name_ = properties.name;
  multiprocessors_ = properties.multiProcessorCount;
  major_ = properties.major;
  minor_ = properties.minor;
  arena_ = std::make_unique<CudaArena>(gpu, properties.totalGlobalMem);
  stream_ = std::make_unique<CudaStream>(*this);
  uploads_ = std::make_unique<UploadStaging>();
  downloads_ = std::make_unique<PinnedMemory>(kDownloadBytes);
}

CudaDevice::~CudaDevice() {
  stream_->Synchronize();
}

void CudaDevice::BindThread() {
  CUDA_CHECK(cudaSetDevice(gpu_));
}

int64_t CudaDevice::FreeBytes() const {
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

std::unique_ptr<DeviceMemory> CudaDevice::Allocate(size_t bytes) {
  std::unique_ptr<DeviceMemory> memory = arena_->Allocate(bytes);
  if (bytes > 0) CUDA_CHECK(cudaMemsetAsync(memory->data(), 0, bytes, stream_->get()));
  return memory;
}

void CudaDevice::Upload(const TensorView& to, std::span<const std::byte> from) {
  CHECK(to.contiguous() && from.size() == Bytes(to));
  UploadBytes(to.data(), from);
}

void CudaDevice::UploadBytes(void* to, std::span<const std::byte> from) {
  auto* at = static_cast<std::byte*>(to);
  while (!from.empty()) {
    const size_t bytes = std::min(from.size(), UploadStaging::kChunk);
    std::byte* staged = uploads_->Reserve(bytes, stream_->get());
    std::memcpy(staged, from.data(), bytes);
    CUDA_CHECK(cudaMemcpyAsync(at, staged, bytes, cudaMemcpyHostToDevice, stream_->get()));
    from = from.subspan(bytes);
    at += bytes;
  }
}

void CudaDevice::Download(std::span<std::byte> to, const TensorView& from) {
  CHECK(from.contiguous() && to.size() == Bytes(from));
  const auto* at = static_cast<const std::byte*>(from.data());
  while (!to.empty()) {
    if (downloads_used_ == downloads_->size()) stream_->Synchronize();
    const size_t bytes = std::min(to.size(), downloads_->size() - downloads_used_);
    std::byte* staged = downloads_->data() + downloads_used_;
    CUDA_CHECK(cudaMemcpyAsync(staged, at, bytes, cudaMemcpyDeviceToHost, stream_->get()));
    pending_.push_back({to.first(bytes), staged});
    downloads_used_ = std::min(downloads_->size(), downloads_used_ + (bytes + 63) / 64 * 64);
    to = to.subspan(bytes);
    at += bytes;
  }
}

void CudaDevice::DeliverDownloads() {
  for (const PendingDownload& download : pending_) {
    std::memcpy(download.to.data(), download.from, download.to.size());
  }
  pending_.clear();
  downloads_used_ = 0;
}

}  // namespace fathom
