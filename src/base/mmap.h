// A file mapped read-only.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"

namespace fathom {

class MappedFile {
 public:
  static Result<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  // Tells the kernel that these bytes will not be read again: their pages leave the memory of this
  // process and, with `from_cache`, the page cache, so that they do not displace others. Bytes of
  // pages that `part` covers only partly stay.
  void Drop(std::span<const std::byte> part, bool from_cache) const;

 private:
  MappedFile() = default;
  std::string path_;
  int fd_ = -1;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The whole file as a string; kResourceExhausted if it has more than `max_bytes`.
Result<std::string> ReadFile(const std::string& path, size_t max_bytes);

}  // namespace fathom
