#include "tensor/buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "tensor/out_of_memory.h"

namespace fathom {
namespace {
constexpr size_t kAlignment = 64;
constexpr size_t kArenaAlignment = 256;  // lines of a GPU's L2 come in twos
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kCommitted = size_t{64} << 20;  // at a time
constexpr size_t RoundUp(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}
}  // namespace

Buffer::Buffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  const size_t mapped = bytes < kHugePage ? bytes : RoundUp(bytes, kHugePage);
  void* p = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) OutOfMemory(fmt::format("the system refused {} bytes", bytes));
  // Advice only: without it the buffer is as right, and slower.
  if (bytes >= kHugePage) (void)madvise(p, mapped, MADV_HUGEPAGE);
  data_ = {static_cast<std::byte*>(p), Free{mapped}};
}

void Buffer::Commit() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // In pieces: during a call no other thread can map memory, nor, behind one that wants to, fault
  // it in, and a host that says nothing for seconds is given up by the others.
  for (size_t begin = 0; begin < size_; begin += kCommitted) {
    const size_t bytes = std::min(size_ - begin, kCommitted);
    if (madvise(data() + begin, bytes, MADV_POPULATE_WRITE) == 0) continue;
    // Older than Linux 5.14, or no memory: then this ends the process, as a later write would have.
    volatile std::byte* const piece = data() + begin;
    for (size_t at = 0; at < bytes; at += page) piece[at] = {};
  }
}

void Buffer::Free::operator()(std::byte* p) const {
  munmap(p, size);
}

TensorView Arena::Allocate(DType dtype, std::initializer_list<int64_t> shape) {
  size_t bytes = ByteSize(dtype);
  for (int64_t n : shape) bytes *= static_cast<size_t>(n);
  return TensorView(TakeBytes(bytes), dtype, shape);
}

std::byte* Arena::TakeBytes(size_t bytes) {
  const size_t begin = used_;
  CHECK(bytes <= size_ - begin, "arena of {} bytes: {} used, {} more asked for", size_, used_,
        bytes);
  used_ = RoundUp(begin + bytes, kArenaAlignment);
  return data_ == nullptr ? nullptr : data_ + begin;
}

}  // namespace fathom
