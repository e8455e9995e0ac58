// The CUDA tables. Test tensors lie in pinned host memory, which host and device both reach.
#include <fmt/format.h>

#include <new>

#include "cuda/check.h"
#include "cuda/device.h"
#include "ops/testing.h"

namespace fathom {
namespace {

const Result<std::unique_ptr<CudaDevice>>& Device0() {
  static const Result<std::unique_ptr<CudaDevice>> device = CudaDevice::Open(0);
  return device;
}

}  // namespace

std::vector<TestBackend> TablesUnderTest(Fp8Activations mode) {
  return {{&CudaPortableOps(mode), 1, mode}, {&CudaHopperOps(mode), 1, mode}};
}

Stream& StreamUnderTest(const TestBackend&) {
  CHECK(Device0().ok(), "{}", Device0().status().message());
  const Status status = (*Device0())->status();
  CHECK(status.ok(), "{}", status.message());
  (*Device0())->BindThread();  // the test before may have had a device of its own
  return (*Device0())->stream();
}

std::string MissingDevice(const TestBackend& backend) {
  if (!Device0().ok()) return "not run: " + Device0().status().message();
  const CudaDevice& device = **Device0();
  // No other GPU runs a table that is made for one architecture.
  if (backend.ops == &CudaPortableOps(backend.activations) ||
      backend.ops == &CudaOps(device, backend.activations)) {
    return "";
  }
  return fmt::format("not run: {} are not ops of {}", backend.ops->name, device.name());
}

std::byte* AllocateTestMemory(size_t bytes) {
  if (!Device0().ok()) return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64}));
  void* memory = nullptr;
  CUDA_CHECK(cudaMallocHost(&memory, bytes == 0 ? 64 : bytes));
  return static_cast<std::byte*>(memory);
}

void FreeTestMemory(std::byte* memory) {
  if (!Device0().ok()) return ::operator delete (memory, std::align_val_t{64});
  CUDA_CHECK(cudaFreeHost(memory));
}

}  // namespace fathom
