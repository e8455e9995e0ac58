#include "cuda/arena.h"

#include <cuda.h>

#include <algorithm>

#include "cuda/check.h"
#include "cuda/driver.h"
#include "tensor/out_of_memory.h"

namespace fathom {
namespace {

constexpr size_t kAlignment = 1024;
constexpr size_t kLeastGrowth = size_t{64} << 20;

constexpr size_t RoundUp(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

CUmemAllocationProp Properties(int gpu) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu};
  return properties;
}

double Gib(size_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

}  // namespace

class CudaArena::Piece final : public DeviceMemory {
 public:
  Piece(CudaArena& arena, size_t begin, size_t size) : arena_(arena), begin_(begin), size_(size) {}
  ~Piece() override {
    if (arena_.used_ == RoundUp(begin_ + size_, kAlignment)) arena_.used_ = begin_;
  }
  std::byte* data() const override { return reinterpret_cast<std::byte*>(arena_.base_) + begin_; }
  size_t size() const override { return size_; }

 private:
  CudaArena& arena_;
  size_t begin_, size_;
};

CudaArena::CudaArena(int gpu, size_t reserved_bytes) : gpu_(gpu) {
  const CUmemAllocationProp properties = Properties(gpu);
  CU_CHECK(Driver().MemGetAllocationGranularity(&granularity_, &properties,
                                                CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  reserved_ = RoundUp(reserved_bytes, granularity_);
  CU_CHECK(Driver().MemAddressReserve(&base_, reserved_, 0, 0, 0));
}

CudaArena::~CudaArena() {
  for (const Mapping& m : mappings_) {
    CU_CHECK(Driver().MemUnmap(base_ + m.offset, m.size));
    CU_CHECK(Driver().MemRelease(m.handle));
  }
  CU_CHECK(Driver().MemAddressFree(base_, reserved_));
}

std::unique_ptr<DeviceMemory> CudaArena::Allocate(size_t bytes) {
  CHECK(!sealed_, "{} bytes of device memory asked for after start-up", bytes);
  const size_t begin = used_, end = RoundUp(begin + bytes, kAlignment);
  if (end > mapped_) Grow(end);
  used_ = end;
  return std::make_unique<Piece>(*this, begin, bytes);
}

void CudaArena::Grow(size_t end) {
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const size_t needed = RoundUp(end - mapped_, granularity_);
  // In strides, to call the driver seldom; the last one is as small as it must be.
  const size_t size =
      std::max(needed, std::min(kLeastGrowth, free / 2 / granularity_ * granularity_));
  const CUmemAllocationProp properties = Properties(gpu_);
  CUmemGenericAllocationHandle handle = 0;
  const bool fits = mapped_ + size <= reserved_;
  const CUresult created =
      fits ? Driver().MemCreate(&handle, size, &properties, 0) : CUDA_ERROR_OUT_OF_MEMORY;
  if (created != CUDA_SUCCESS) {
    OutOfMemory(
        fmt::format("the GPU refused {:.2f} GiB, with {:.2f} in use here and {:.2f} of {:.2f} free",
                    Gib(needed), Gib(mapped_), Gib(free), Gib(total)));
  }
  CU_CHECK(Driver().MemMap(base_ + mapped_, size, 0, handle, 0));
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CU_CHECK(Driver().MemSetAccess(base_ + mapped_, size, &access, 1));
  mappings_.push_back({mapped_, size, handle});
  mapped_ += size;
}

}  // namespace fathom
