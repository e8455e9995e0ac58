// Pinned host memory, through which numbers travel while the host goes on.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

namespace fathom {

class PinnedMemory {
 public:
  explicit PinnedMemory(size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_;
};

// A ring of chunks; one is written again once the copies out of it are done.
class UploadStaging {
 public:
  static constexpr size_t kChunk = size_t{4} << 20;

  UploadStaging();
  ~UploadStaging();

  // Whether the current chunk has room; if not, Reserve() goes on to the next.
  bool HasRoom(size_t bytes) const { return used_ + bytes <= kChunk; }
  // Room to be copied from on `stream`, to which all copies from the rooms before have been given.
  // REQUIRES: bytes <= kChunk.
  std::byte* Reserve(size_t bytes, cudaStream_t stream);

 private:
  static constexpr int kChunks = 8;
  PinnedMemory memory_;
  std::array<cudaEvent_t, kChunks> copied_{};
  int current_ = 0;
  size_t used_ = 0;
};

}  // namespace fathom
