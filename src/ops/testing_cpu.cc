// The reference table, and the CPU table on several numbers of threads.
#include <map>
#include <new>

#include "cpu/cpu_stream.h"
#include "ops/testing.h"

namespace fathom {

std::vector<TestBackend> TablesUnderTest(Fp8Activations mode) {
  std::vector<TestBackend> backends = {Oracle(mode)};
  for (int threads = 1; threads <= 3; ++threads) {
    backends.push_back({&CpuOps(mode), threads, mode});
  }
  return backends;
}

Stream& StreamUnderTest(const TestBackend& backend) {
  static std::map<int, std::unique_ptr<CpuStream>> streams;
  std::unique_ptr<CpuStream>& stream = streams[backend.threads];
  if (stream == nullptr) stream = std::make_unique<CpuStream>(backend.threads);
  return *stream;
}

std::string MissingDevice(const TestBackend&) {
  return {};
}

std::byte* AllocateTestMemory(size_t bytes) {
  return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64}));
}

void FreeTestMemory(std::byte* memory) {
  ::operator delete (memory, std::align_val_t{64});
}

}  // namespace fathom
