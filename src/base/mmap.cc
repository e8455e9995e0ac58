#include "base/mmap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace fathom {
namespace {

// A descriptor that closes itself.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

// Does not wait for a writer, as a plain open of a FIFO would.
Descriptor OpenToRead(const std::string& path) {
  return Descriptor{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
}

Result<size_t> RegularFileSize(int fd, const std::string& path) {
  if (fd < 0) return NotFound("cannot open {}: {}", path, std::strerror(errno));
  struct stat info;
  if (fstat(fd, &info) != 0) return NotFound("cannot stat {}: {}", path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return InvalidArgument("{} is not a regular file", path);
  return static_cast<size_t>(info.st_size);
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  Descriptor file = OpenToRead(path);
  MappedFile mapped;
  mapped.path_ = path;
  mapped.size_ = TRY(RegularFileSize(file.fd, path));
  if (mapped.size_ == 0) return mapped;
  void* data = mmap(nullptr, mapped.size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) {
    mapped.size_ = 0;
    return ResourceExhausted("cannot map {}: {}", path, std::strerror(errno));
  }
  mapped.data_ = static_cast<std::byte*>(data);
  mapped.fd_ = std::exchange(file.fd, -1);
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  munmap(data_, size_);
  close(fd_);
}

void MappedFile::Drop(std::span<const std::byte> part, bool from_cache) const {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
  // Advice only: the bytes are read again from the file if they are touched, so failure is
  // harmless.
  if (begin >= end) return;
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  if (!from_cache) return;
  const auto offset = static_cast<off_t>(begin - reinterpret_cast<uintptr_t>(data_));
  (void)posix_fadvise(fd_, offset, static_cast<off_t>(end - begin), POSIX_FADV_DONTNEED);
}

Result<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  const Descriptor file = OpenToRead(path);
  const size_t size = TRY(RegularFileSize(file.fd, path));
  if (size > max_bytes) {
    return ResourceExhausted("{} has {} bytes; at most {} are read", path, size, max_bytes);
  }
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n = read(file.fd, text.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return DataLoss("cannot read {}: {}", path, n < 0 ? std::strerror(errno) : "cut off");
    done += static_cast<size_t>(n);
  }
  return text;
}

}  // namespace fathom
