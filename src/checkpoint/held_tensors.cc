#include "checkpoint/held_tensors.h"

#include <cstring>

namespace fathom {

const std::byte* HeldTensors::Hold(const StoredTensor& tensor, std::span<const std::byte> bytes) {
  const bool aligned = reinterpret_cast<uintptr_t>(bytes.data()) % ByteSize(*tensor.dtype) == 0;
  const std::lock_guard lock(mutex_);
  const auto [at, is_new] = held_.try_emplace(tensor.name);
  std::optional<Buffer>& copy = at->second;
  if (is_new) {
    asked_bytes_ += tensor.bytes;
    if (!aligned) std::memcpy(copy.emplace(tensor.bytes).data(), bytes.data(), tensor.bytes);
  }
  return copy ? copy->data() : bytes.data();
}

void HeldTensors::Drop(const StoredTensor& tensor) {
  const std::lock_guard lock(mutex_);
  held_.erase(tensor.name);
}

uint64_t HeldTensors::asked_bytes() const {
  const std::lock_guard lock(mutex_);
  return asked_bytes_;
}

}  // namespace fathom
